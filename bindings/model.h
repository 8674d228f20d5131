// The Python classes Model and Adapter.
#pragma once

#include <memory>

#include "convert.h"
#include "module.h"
#include "objects.h"
#include "runtime/loaded_model.h"
#include "runtime/steering/adapter.h"

namespace plait::python {

struct PyModel : ZeroInitialized {
    std::shared_ptr<const LoadedModel> loaded;  // null if __init__ was never called
    py::object metadata;                        // mapping proxies, created on first use
    py::object tensors;
};

struct PyAdapter {
    std::shared_ptr<const Adapter> adapter;
    py::object metadata;  // a mapping proxy, created on first use
};

PyAdapter load_lora(const PyModel& self, const PathLike& path, const OptionalFlag& rank_stabilized);

// Throws ModelError if the path of a file leads to other files than those that are open.
void check_unchanged(const gguf::File& file);

// Returns a mapping proxy of the dict.
py::object read_only(py::handle dict);

}  // namespace plait::python
