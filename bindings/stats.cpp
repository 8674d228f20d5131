#include "runtime/step/stats.h"

#include "base/text.h"
#include "context.h"

namespace plait::python {
namespace {

struct PyStats : Zeroed {
    std::shared_ptr<SharedContext> shared;
};

using CountsByName = py::typing::Dict<py::str, py::int_>;
using SecondsByName = py::typing::Dict<py::str, py::float_>;

constexpr const char* kPhaseNames[kPhases] = {"place", "build", "input", "compute", "output"};

CountsByName misses(const PyStats& self) {
    const Stats stats = made(self.shared)->stats();
    py::dict result;
    for (size_t i = 0; i < kMissReasons; ++i)
        if (stats.misses[i] > 0) result[to_string(static_cast<MissReason>(i))] = stats.misses[i];
    return result;
}

SecondsByName seconds(const PyStats& self) {
    const Stats stats = made(self.shared)->stats();
    py::dict result;
    for (size_t i = 0; i < kPhases; ++i) result[kPhaseNames[i]] = stats.seconds[i];
    return result;
}

CountsByName nodes(const PyStats& self) {
    const Stats stats = made(self.shared)->stats();
    const std::vector<std::string>& devices = made(self.shared)->fixed().all_devices();
    py::dict result;
    for (size_t i = 0; i < devices.size(); ++i)
        if (stats.nodes[i] > 0) result[py::str(devices[i])] = stats.nodes[i];
    return result;
}

py::str stats_repr(const PyStats& self) {
    const Stats stats = made(self.shared)->stats();
    return text("<plait.Stats: ", stats.tokens, " tokens in ", stats.microbatches,
                " microbatches, plans ", stats.plans_built, " built and ", stats.plans_reused,
                " times reused>");
}

}  // namespace

void bind_stats(py::module_& m) {
    const auto counter = [](auto member) {
        return [member](const PyStats& self) { return made(self.shared)->stats().*member; };
    };
    py::class_<PyStats>(
        m, "Stats",
        R"(What a context has done since it was made or reset. Read when asked, not a copy.

After close() the last figures stay.)")
        .def("__init__", init(+[](const PyContext& context) {
                 return PyStats{{}, made(context.shared)};
             }),
             py::detail::is_new_style_constructor(), py::arg("context"))
        .def_property_readonly("tokens", counter(&Stats::tokens), "Entries of successful calls.")
        .def_property_readonly("microbatches", counter(&Stats::microbatches),
                               "Pieces that they were computed in.")
        .def_property_readonly("plans_built", counter(&Stats::plans_built), "Plans made.")
        .def_property_readonly("plans_reused", counter(&Stats::plans_reused),
                               "How often a plan was found made.")
        .def_property_readonly(
            "plan_misses", &misses,
            R"(Why plans were built: reason to count, without those that did not occur.

Reasons: "first use", "new bucket", "new adapter set", "new capture set", "new edit set",
"reuse off", "evicted".)")
        .def_property_readonly(
            "seconds", &seconds,
            "Wall time in seconds, by phase: \"place\", \"build\", \"input\", \"compute\", "
            "\"output\".")
        .def_property_readonly("nodes", &nodes, "Graph nodes run, by device as in `devices()`.")
        .def_property_readonly("rows_copied", counter(&Stats::rows_copied),
                               "Cache rows copied for copies, shifts and defragmentation.")
        .def_property_readonly("commands_recorded", counter(&Stats::commands_recorded),
                               R"(Command buffers recorded: a plan records one when it first runs.

0 on the CPU, which has none.)")
        .def_property_readonly("commands_submitted", counter(&Stats::commands_submitted),
                               "How often one was submitted: once for every run of a plan.")
        .def(
            "reset", [](const PyStats& self) { made(self.shared)->reset_stats(); },
            "Set every figure to zero.")
        .def("__repr__", &stats_repr);
}

}  // namespace plait::python
