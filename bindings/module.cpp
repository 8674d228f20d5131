#include "module.h"
#include "unlocked.h"

PYBIND11_MODULE(_core, m) {
    m.doc() =
        "The compiled half of plait. Import plait; what is meant for users is re-exported there.";

    plait::python::bind_errors(m);
    plait::python::bind_log(m);
    plait::python::bind_build(m);
    plait::python::bind_quant(m);
    plait::python::bind_adapter(m);
    plait::python::bind_model(m);
    plait::python::bind_batch(m);
    plait::python::bind_output(m);
    plait::python::bind_context(m);
    plait::python::bind_kv_cache(m);
    plait::python::bind_stats(m);
    plait::python::bind_sampler(m);
    plait::python::watch_for_the_end();  // last, as what is registered last comes first then
}
