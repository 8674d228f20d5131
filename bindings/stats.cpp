#include "base/text.h"
#include "context.h"

namespace plait::python {
namespace {

struct PyStats : ContextUser {};

using CountsByName = py::typing::Dict<py::str, py::int_>;
using SecondsByName = py::typing::Dict<py::str, py::float_>;

constexpr const char* kPhaseNames[kPhases] = {"place", "build", "input", "compute", "output"};

Stats stats_of(const PyStats& self) {
    return self.call([](const Context& c) { return c.stats(); });
}

CountsByName misses(const PyStats& self) {
    const Stats stats = stats_of(self);
    py::dict result;
    for (size_t i = 0; i < kMissReasons; ++i)
        if (stats.misses[i] > 0) result[to_string(static_cast<MissReason>(i))] = stats.misses[i];
    return result;
}

SecondsByName seconds(const PyStats& self) {
    const Stats stats = stats_of(self);
    py::dict result;
    for (size_t i = 0; i < kPhases; ++i) result[kPhaseNames[i]] = stats.seconds[i];
    return result;
}

CountsByName nodes(const PyStats& self) {
    const Stats stats = stats_of(self);
    const std::vector<std::string>& devices = initialized(self.shared)->fixed().all_devices();
    py::dict result;
    for (size_t i = 0; i < devices.size(); ++i)
        if (stats.nodes[i] > 0) result[py::str(devices[i])] = stats.nodes[i];
    return result;
}

py::str stats_repr(const PyStats& self) {
    const Stats stats = stats_of(self);
    return text("<plait.Stats: ", stats.tokens, " tokens in ", stats.microbatches,
                " microbatches, plans ", stats.plans_built, " built and ", stats.plans_reused,
                " times reused>");
}

}  // namespace

void bind_stats(py::module_& m) {
    const auto counter = [](auto member) {
        return [member](const PyStats& self) { return stats_of(self).*member; };
    };
    py::class_<PyStats>(m, "Stats",
                        R"(Counters and times of a context since construction or the last reset.

The attributes are live values, not a snapshot. After the context is closed they keep their last
values.

Args:
    context: The context.)")
        .def("__init__", init(+[](const PyContext& context) {
                 return PyStats{{{}, initialized(context.shared)}};
             }),
             py::detail::is_new_style_constructor(), py::arg("context"))
        .def_property_readonly("tokens", counter(&Stats::tokens),
                               "Number of entries in successful calls.")
        .def_property_readonly("microbatches", counter(&Stats::microbatches),
                               "Number of microbatches computed.")
        .def_property_readonly("plans_built", counter(&Stats::plans_built),
                               "Number of plans built.")
        .def_property_readonly("plans_reused", counter(&Stats::plans_reused),
                               "Number of times that an existing plan was reused.")
        .def_property_readonly(
            "plan_misses", &misses,
            R"(Number of plans built by reason, omitting reasons that did not occur.

The reasons are "first use", "new bucket", "new adapter set", "new capture set", "new edit set",
"reuse off" and "evicted".)")
        .def_property_readonly(
            "seconds", &seconds,
            "Wall time in seconds, by phase: \"place\", \"build\", \"input\", \"compute\", "
            "\"output\".")
        .def_property_readonly("nodes", &nodes,
                               "Number of graph nodes run by device, named as in `devices()`.")
        .def_property_readonly(
            "rows_copied", counter(&Stats::rows_copied),
            "Number of cache rows copied by sequence copies, shifts and defragmentation.")
        .def_property_readonly(
            "commands_recorded", counter(&Stats::commands_recorded),
            R"(Number of command buffers recorded; a plan records one when it first runs.

0 on the CPU, which has no command buffers.)")
        .def_property_readonly("commands_submitted", counter(&Stats::commands_submitted),
                               "Number of command buffers submitted: one per run of a plan.")
        .def(
            "reset",
            [](const PyStats& self) {
                initialized(self.shared)->call([](Context& c) { c.reset_stats(); });
            },
            "Reset all counters and times to zero.")
        .def("__repr__", &stats_repr);
}

}  // namespace plait::python
