// The functions that bind the parts of plait._core, in the order in which module.cpp calls them,
// and declarations that all parts share.
#pragma once

#include <pybind11/pybind11.h>

namespace plait::python {

namespace py = pybind11;

void bind_errors(py::module_& m);
void bind_log(py::module_& m);
void bind_build(py::module_& m);
void bind_quant(py::module_& m);
void bind_model(py::module_& m);
void bind_adapter(py::module_& m);
void bind_batch(py::module_& m);
void bind_output(py::module_& m);
void bind_context(py::module_& m);
void bind_sequence(py::module_& m);
void bind_kv_cache(py::module_& m);
void bind_stats(py::module_& m);
void bind_sampler(py::module_& m);
// Adds signatures to the functions and classes of the module, and replaces the errors of wrong
// calls.
void describe_signatures(py::module_& m);

// Applies the current level of the Python logger "plait" to the runtime. Call it with the GIL
// before work that may log, because Python does not report changes of a level. It only reads
// attributes.
void follow_log_level();

}  // namespace plait::python
