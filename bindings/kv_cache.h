// The Python class KVCache. Its methods are bound in kv_cache.cpp, kv_state.cpp and kv_defrag.cpp.
#pragma once

#include <memory>
#include <utility>

#include "context.h"

namespace plait::python {

struct PyKvCache : ZeroInitialized {
    std::shared_ptr<SharedContext> shared;

    template <typename F>
    auto call(F&& f) const {
        return initialized(shared)->call(std::forward<F>(f));
    }
    template <typename F>
    auto session(F&& f) const {
        return initialized(shared)->session(std::forward<F>(f));
    }
    // See SharedContext::session_on().
    template <typename F>
    auto session_on(std::initializer_list<SequenceRef> sequences, F&& f) const {
        return initialized(shared)->session_on(sequences, std::forward<F>(f));
    }
};

using KvCacheClass = py::class_<PyKvCache>;
void bind_kv_state(KvCacheClass& kv);
void bind_kv_defrag(py::module_& m, KvCacheClass& kv);

}  // namespace plait::python
