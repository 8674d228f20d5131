// Defragmentation methods of KVCache.
#include <cstring>

#include "base/text.h"
#include "convert.h"
#include "kv_cache.h"
#include "module.h"
#include "numpy.h"

namespace plait::python {
namespace {

int64_t defrag(const PyKvCache& self, const OptionalInteger& max_moves) {
    std::optional<int64_t> max;
    if (!max_moves.is_none()) max = to_int64("max_moves", max_moves);
    follow_log_level();
    return self.session([&](Session& s) { return s.defrag(max).cells; });
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
    py::class_<DefragReport>(m, "Defrag",
                             "Figures of one defragmentation; see `KVCache.last_defrag`.",
                             not_constructible())
        .def_readonly("cells", &DefragReport::cells, "Number of cells moved.")
        .def_readonly("moves", &DefragReport::n_moves,
                      R"(Number of moves. Adjacent cells that move together count as one move.

Layer groups with separate cells count separately.)")
        .def_readonly("rounds", &DefragReport::rounds,
                      "Number of rounds, each of at most `max_moves` moves.")
        .def_readonly("bytes", &DefragReport::bytes, "Number of bytes copied on the device.")
        .def_readonly("seconds", &DefragReport::seconds, "Wall time in seconds.")
        .def_readonly("automatic", &DefragReport::automatic,
                      "True if decode() started it, False if defrag() did.")
        .def_property_readonly("records", &records,
                               R"(The moves in order, as a structured ndarray of shape (moves,).

The fields are int32: `group` (index of the group of layers that share cells), `from`, `to` and `n`.
Cells [from, from + n) moved to [to, to + n).)")
        .def("__repr__", &defrag_repr);
    kv.def("defrag", &defrag, py::arg("max_moves") = py::none(),
           R"(Move the used cells of every stream to its front, in long runs.

Speeds up attention. The contents of cells, including pending shifts, do not change by a single bit.
A batch never needs defragmentation to fit.

Args:
    max_moves: Max moves per round, at least 1; there are as many rounds as needed. None: 1024.

Returns:
    Number of cells moved; 0 if there was nothing to do. See `last_defrag` for details.

Raises:
    ValueError: `max_moves` is less than 1.)")
        .def_property_readonly(
            "last_defrag",
            [](const PyKvCache& self) -> py::typing::Optional<DefragReport> {
                auto last = self.session([](Session& s) { return s.last_defrag(); });
                if (!last) return py::none();
                return py::cast(std::move(*last));
            },
            "Figures of the last defragmentation, explicit or automatic. None if there was none.")
        .def_property_readonly(
            "fragmentation",
            [](const PyKvCache& self) {
                return self.session(
                    [](Session& s) { return fragmentation(s.memory().count_runs()); });
            },
            R"(Share of attention steps that are needed only because runs of cells are short, from 0 to 1.

0 if all runs have at least 32 cells or cannot be longer; close to 1 if every cell is isolated. Also
0 if the sequences hold fewer than 256 cells.)");
}

}  // namespace plait::python
