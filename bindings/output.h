// What decode() and encode() return.
#pragma once

#include <cstddef>

#include "module.h"
#include "runtime/step/outputs.h"

namespace plait::python {

struct PyOutput {
    Outputs outputs;
    size_t n_entries = 0;  // of the batch
    py::object model;      // a weak reference to it: an output keeps no weights alive
};

}  // namespace plait::python
