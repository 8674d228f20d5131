// The Python class KVCache. Its methods are bound in kv_cache.cpp, kv_state.cpp and kv_defrag.cpp.
#pragma once

#include <utility>

#include "context.h"

namespace plait::python {

struct PyKvCache : ContextUser {
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
