// A KVCache as Python's objects hold it, and the parts of its class.
#pragma once

#include <memory>
#include <utility>

#include "context.h"

namespace plait::python {

struct PyKvCache : Zeroed {
    std::shared_ptr<SharedContext> shared;

    template <typename F>
    auto call(F&& f) const {
        return made(shared)->call(std::forward<F>(f));
    }
};

using KvCacheClass = py::class_<PyKvCache>;
void bind_kv_state(KvCacheClass& kv);
void bind_kv_defrag(py::module_& m, KvCacheClass& kv);

}  // namespace plait::python
