// The Python class Output.
#pragma once

#include <cstddef>

#include "module.h"
#include "runtime/step/outputs.h"

namespace plait::python {

struct PyOutput {
    Outputs outputs;
    size_t n_entries = 0;  // in the batch
    py::object model;      // a weak reference, so that an output does not keep the weights alive
};

}  // namespace plait::python
