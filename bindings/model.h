// A loaded model as Python holds it.
#pragma once

#include <memory>

#include "convert.h"
#include "made.h"
#include "module.h"
#include "runtime/loaded_model.h"
#include "runtime/steering/adapter.h"

namespace plait::python {

struct PyModel : Zeroed {
    std::shared_ptr<const LoadedModel> loaded;  // null in one that was never initialised
    py::object metadata;                        // mapping proxies, made when first asked for
    py::object tensors;
};

// An adapter as Python holds it.
struct PyAdapter {
    std::shared_ptr<const Adapter> adapter;
    py::object metadata;  // a mapping proxy, made when first asked for
};

PyAdapter load_lora(const PyModel& self, const PathLike& path, const OptionalFlag& rank_stabilized);

py::object read_only(py::handle dict);  // as a mapping proxy

// The key-value part of a file as a dict.
py::dict to_dict(const gguf::Metadata& metadata);

}  // namespace plait::python
