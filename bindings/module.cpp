#include "module.h"
#include "gil_release.h"

namespace py = pybind11;

// On a build of Python without the GIL, importing the module does not enable it
// (docs/decisions/0054).
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
    m.doc() =
        "The compiled part of plait. Import plait instead, which re-exports the public names.";

    plait::python::bind_errors(m);
    plait::python::bind_log(m);
    plait::python::bind_build(m);
    plait::python::bind_quant(m);
    plait::python::bind_adapter(m);
    plait::python::bind_model(m);
    plait::python::bind_batch(m);
    plait::python::bind_output(m);
    plait::python::bind_context(m);
    plait::python::bind_sequence(m);
    plait::python::bind_kv_cache(m);
    plait::python::bind_stats(m);
    plait::python::bind_sampler(m);
    plait::python::describe_signatures(m);
    plait::python::register_exit_handler();  // last, because exit handlers run in reverse order
}
