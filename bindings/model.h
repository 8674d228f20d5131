// A loaded model as Python holds it.
#pragma once

#include <memory>

#include "made.h"
#include "module.h"
#include "runtime/loaded_model.h"

namespace plait::python {

struct PyModel : Zeroed {
    std::shared_ptr<const LoadedModel> loaded;  // null in one that was never initialised
    py::object metadata;                        // mapping proxies, made when first asked for
    py::object tensors;
};

// The key-value part of a file as a dict.
py::dict to_dict(const gguf::Metadata& metadata);

}  // namespace plait::python
