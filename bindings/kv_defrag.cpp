// KVCache: moving cells together.
#include <cstring>

#include "base/text.h"
#include "convert.h"
#include "kv_cache.h"
#include "log.h"
#include "numpy.h"

namespace plait::python {
namespace {

int64_t defrag(const PyKvCache& self, const OptionalInteger& max_moves) {
    std::optional<int64_t> most;
    if (!max_moves.is_none()) most = to_int64("max_moves", max_moves);
    follow_log_level();
    return self.call([&](Context& c) { return c.defrag(most).cells; });
}

py::array records(const DefragReport& report) {
    py::list fields;
    for (const char* name : {"group", "from", "to", "n"})
        fields.append(py::make_tuple(name, "<i4"));
    const auto n = static_cast<py::ssize_t>(report.moves.size());
    py::array result = py::module_::import("numpy").attr("empty")(n, fields);
    auto* to = static_cast<int32_t*>(result.mutable_data());
    for (const RowMove& move : report.moves)
        for (const int32_t value : {int32_t{move.group}, move.from, move.to, move.n}) *to++ = value;
    return result;
}

std::string defrag_repr(const DefragReport& report) {
    return text("<plait.Defrag: ", report.cells, " cells in ", report.n_moves, " moves and ",
                report.rounds, " rounds, ", report.bytes, " bytes, ", report.seconds, " s",
                report.automatic ? ", automatic>" : ">");
}

}  // namespace

void bind_kv_defrag(py::module_& m, KvCacheClass& kv) {
    py::class_<DefragReport>(m, "Defrag", "What a defragmentation did; from `KVCache.last_defrag`.",
                             only_ours())
        .def_readonly("cells", &DefragReport::cells, "Cells that were moved.")
        .def_readonly("moves", &DefragReport::n_moves,
                      "Moves; cells that went side by side are one. Layers of other windows count "
                      "for themselves where their cells are their own.")
        .def_readonly("rounds", &DefragReport::rounds, "Rounds of at most `max_moves` of them.")
        .def_readonly("bytes", &DefragReport::bytes, "Bytes copied, on the device.")
        .def_readonly("seconds", &DefragReport::seconds, "Wall time in seconds.")
        .def_readonly("automatic", &DefragReport::automatic, "Whether nobody had asked.")
        .def_property_readonly("records", &records, R"(The moves, in order.

Returns
-------
structured ndarray
    Fields `group` (layers with the same cells), `from`, `to`, `n`: cells [from, from + n) went to
    [to, to + n). All int32.)")
        .def("__repr__", &defrag_repr);
    kv.def(
          "defrag", &defrag, py::arg("max_moves") = py::none(),
          R"(Move cells together: afterwards the first cells of every stream are in use, in long runs.

Only attention gets faster. What cells hold stays the same to the bit, pending shifts included, and
no batch needs it to fit.

Parameters
----------
max_moves : int, optional
    Moves in one round, at least 1; there are as many rounds as it takes. None: 1024.

Returns
-------
int
    Cells that were moved; 0 when there was nothing to do. `last_defrag` says more.

Raises
------
ValueError
    `max_moves` below 1.)")
        .def_property_readonly(
            "last_defrag",
            [](const PyKvCache& self) -> py::typing::Optional<DefragReport> {
                auto last = self.call([](const Context& c) { return c.last_defrag(); });
                if (!last) return py::none();
                return py::cast(std::move(*last));
            },
            "What the last defragmentation did, asked for or automatic; None when there was none.")
        .def_property_readonly(
            "fragmentation",
            [](const PyKvCache& self) {
                return self.call([](const Context& c) { return c.fragmentation(); });
            },
            R"(How much attention suffers from where cells lie, from 0 to 1.

The share of its steps that it takes only because runs of cells are short: 0 where they have 32 cells
or more, or where they cannot be longer, towards 1 where each cell is by itself. 0 also where
sequences hold less than 256 cells.)");
}

}  // namespace plait::python
