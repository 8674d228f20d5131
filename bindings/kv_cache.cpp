#include <algorithm>
#include <cstring>

#include "kv_cache.h"
#include "log.h"
#include "model.h"
#include "numpy.h"

namespace plait::python {
namespace {

PositionRange range(py::handle p0, py::handle p1) {
    PositionRange result;
    result.begin = to_int32("p0", p0);
    if (!p1.is_none()) result.end = to_int32("p1", p1);
    return result;
}

bool seq_rm(const PyKvCache& self, const Integer& seq, const Integer& p0,
            const OptionalInteger& p1) {
    const int32_t id = to_int32("seq", seq);
    const PositionRange positions = range(p0, p1);
    return self.call([&](Context& c) { return c.seq_rm(id, positions); });
}

void seq_cp(const PyKvCache& self, const Integer& src, const Integer& dst, const Integer& p0,
            const OptionalInteger& p1) {
    const int32_t from = to_int32("src", src);
    const int32_t to = to_int32("dst", dst);
    const PositionRange positions = range(p0, p1);
    follow_log_level();
    self.call([&](Context& c) { c.seq_cp(from, to, positions); });
}

void seq_keep(const PyKvCache& self, const Integer& seq) {
    const int32_t id = to_int32("seq", seq);
    self.call([&](Context& c) { c.seq_keep(id); });
}

void seq_add(const PyKvCache& self, const Integer& seq, const Integer& p0,
             const OptionalInteger& p1, const Integer& delta) {
    const int32_t id = to_int32("seq", seq);
    const PositionRange positions = range(p0, p1);
    const int32_t by = to_int32("delta", delta);
    self.call([&](Context& c) { c.seq_add(id, positions, by); });
}

void seq_div(const PyKvCache& self, const Integer& seq, const Integer& p0,
             const OptionalInteger& p1, const Integer& divisor) {
    const int32_t id = to_int32("seq", seq);
    const PositionRange positions = range(p0, p1);
    const int32_t by = to_int32("divisor", divisor);
    self.call([&](Context& c) { c.seq_div(id, positions, by); });
}

std::optional<PositionBounds> bounds(const PyKvCache& self, const Integer& seq) {
    const int32_t id = to_int32("seq", seq);
    return self.call([&](const Context& c) { return c.seq_positions(id); });
}

size_t seq_len(const PyKvCache& self, const Integer& seq) {
    const int32_t id = to_int32("seq", seq);
    return self.call([&](const Context& c) {
        c.seq_positions(id);  // refuses ids that do not exist
        const std::vector<Cell> cells = c.cells();
        return static_cast<size_t>(std::ranges::count_if(cells, [id](const Cell& cell) {
            return std::ranges::binary_search(cell.sequences, id);
        }));
    });
}

py::array cells(const PyKvCache& self) {
    const std::vector<Cell> cells = self.call([](const Context& c) { return c.cells(); });
    const Context& fixed = made(self.shared)->fixed();
    const auto axes = static_cast<size_t>(fixed.model()->info().n_pos_per_token);
    const auto n_seq_max = static_cast<size_t>(fixed.options().n_seq_max);
    py::list fields;
    fields.append(py::make_tuple("row", "<i4"));
    fields.append(py::make_tuple("stream", "<i4"));
    fields.append(py::make_tuple("pos", "<i4", py::make_tuple(axes)));
    fields.append(py::make_tuple("shift", "<i4"));
    fields.append(py::make_tuple("seqs", "?", py::make_tuple(n_seq_max)));
    const auto n = static_cast<py::ssize_t>(cells.size());
    py::array result = py::module_::import("numpy").attr("zeros")(n, fields);
    auto* to = static_cast<char*>(result.mutable_data());
    const auto put = [&to](const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
        to += bytes;
    };
    for (const Cell& cell : cells) {
        put(&cell.row, 4);
        put(&cell.stream, 4);
        put(cell.position, 4 * axes);
        put(&cell.shift, 4);
        for (const SequenceId id : cell.sequences) to[id] = 1;
        to += n_seq_max;
    }
    return result;
}

using Read = Rows (Context::*)(int, SequenceId);

py::array_t<float> read(const PyKvCache& self, const Integer& layer, const Integer& seq,
                        Read function) {
    const int32_t index = to_int32("layer", layer);
    const int32_t id = to_int32("seq", seq);
    Rows rows = self.call([&](Context& c) { return (c.*function)(index, id); });
    return take_vector(std::move(rows.values), {rows.n, rows.n_heads, rows.head_dim});
}

py::str kv_cache_repr(const PyKvCache& self) {
    if (self.call([](const Context& c) { return c.closed(); }))
        return py::str("<plait.KVCache, closed>");
    const auto [kind, cells, used, bytes] = self.call([](const Context& c) {
        return std::tuple(c.memory_kind(), c.n_cells(), c.n_used(), c.memory_bytes());
    });
    const ContextOptions& options = made(self.shared)->fixed().options();
    return py::str("<plait.KVCache {}: {} of {} cells used, {} sequences, {:.4g} MB>")
        .format(kind, used, cells, options.n_seq_max, static_cast<double>(bytes) / 1e6);
}

void bind_size(KvCacheClass& kv) {
    const auto ask = [](auto get) {
        return [get](const PyKvCache& self) { return self.call(get); };
    };
    kv.def_property_readonly(
          "kind", ask([](const Context& c) { return c.memory_kind(); }),
          R"(Of the whole memory: "unified", "streams", "sliding", "recurrent", "hybrid", "cross" or "none".)")
        .def_property_readonly("n_streams", ask([](const Context& c) { return c.n_streams(); }),
                               "1, or n_seq_max where each sequence has rows of its own.")
        .def_property_readonly("n_cells", ask([](const Context& c) { return c.n_cells(); }),
                               "Cells in all.")
        .def_property_readonly("n_used", ask([](const Context& c) { return c.n_used(); }),
                               "Cells that at least one sequence holds.")
        .def_property_readonly("n_free",
                               ask([](const Context& c) { return c.n_cells() - c.n_used(); }),
                               "Cells that no sequence holds.")
        .def_property_readonly("nbytes", ask([](const Context& c) { return c.memory_bytes(); }),
                               "Bytes of all keys and values, used or not.")
        .def_property_readonly(
            "n_seq_max",
            [](const PyKvCache& self) { return made(self.shared)->fixed().options().n_seq_max; },
            "Sequences that may live at once.")
        .def_property_readonly("can_shift", ask([](const Context& c) { return c.can_shift(); }),
                               "Whether positions can be changed (seq_add, seq_div).")
        .def_property_readonly("can_partial_remove",
                               ask([](const Context& c) { return c.can_partial_remove(); }),
                               "Whether a part of a sequence can be removed.");
}

void bind_sequence_changes(KvCacheClass& kv) {
    kv.def("seq_rm", &seq_rm, py::arg("seq"), py::arg("p0") = 0, py::arg("p1") = py::none(),
           R"(Forget positions [p0, p1) of a sequence. Cells that others hold too stay theirs.

Returns
-------
bool
    False where this memory cannot remove that part. An empty range is True.)")
        .def("seq_cp", &seq_cp, py::arg("src"), py::arg("dst"), py::arg("p0") = 0,
             py::arg("p1") = py::none(), R"(Make `dst` hold what `src` holds at positions [p0, p1).

What `dst` held there is released first; the rest of it stays. Cells are shared where the memory
can, copied otherwise. `src` equal to `dst` does nothing.

Raises
------
UnsupportedError
    This memory cannot copy that part.
CacheFull
    A copy that needs cells found none.)")
        .def("seq_keep", &seq_keep, py::arg("seq"), "Empty every other sequence.")
        .def(
            "seq_add", &seq_add, py::arg("seq"), py::arg("p0"), py::arg("p1"), py::arg("delta"),
            R"(Add `delta` to positions [p0, p1); cached keys are rotated accordingly before they are next read.

Cells shared with another sequence are copied first. Where the rotary function also multiplies
(YaRN), each shift multiplies every key that the sequence alone holds once more: after many
shifts it is better to compute the sequence again.

Raises
------
ValueError
    A position would become negative, or the order of positions change.
CacheFull
    There are no cells for the copies.
UnsupportedError
    The keys of this model cannot be rotated.)")
        .def(
            "seq_div", &seq_div, py::arg("seq"), py::arg("p0"), py::arg("p1"), py::arg("divisor"),
            R"(Divide positions [p0, p1) by `divisor`, at least 1, rounding down. Several may become equal.

Errors are those of seq_add().)")
        .def(
            "clear", [](const PyKvCache& self) { self.call([](Context& c) { c.clear(); }); },
            "Empty every sequence.");
}

void bind_sequence_queries(KvCacheClass& kv) {
    kv.def(
          "seq_pos_min",
          [](const PyKvCache& self, const Integer& seq) {
              const auto held = bounds(self, seq);
              return held ? held->min : -1;
          },
          py::arg("seq"), "The smallest position that a sequence holds; -1 when it is empty.")
        .def(
            "seq_pos_max",
            [](const PyKvCache& self, const Integer& seq) {
                const auto held = bounds(self, seq);
                return held ? held->max : -1;
            },
            py::arg("seq"),
            "The largest position that a sequence holds, of all axes; -1 when it is empty.")
        .def("seq_len", &seq_len, py::arg("seq"),
             "Number of cells that a sequence holds, shared ones included.");
}

void bind_contents(KvCacheClass& kv) {
    kv.def("cells", &cells, R"(The cells in use, for people.

Returns
-------
structured ndarray, shape (n_used,)
    Fields: `row` (int32, storage row), `stream` (int32), `pos` (int32, (n_pos_per_token,)),
    `shift` (int32, rotation that is still to be applied), `seqs` (bool, (n_seq_max,), who holds it).)")
        .def(
            "keys",
            [](const PyKvCache& self, const Integer& layer, const Integer& seq) {
                return read(self, layer, seq, &Context::keys);
            },
            py::arg("layer"), py::arg("seq"), R"(A copy of a sequence's cached keys.

Returns
-------
ndarray of float32, shape (n_pos, n_head_kv, head_dim)
    In order of position, pending shifts applied, as rotated for their positions.

Raises
------
IndexError
    There is no such layer.
UnsupportedError
    The layer keeps no keys.)")
        .def(
            "values",
            [](const PyKvCache& self, const Integer& layer, const Integer& seq) {
                return read(self, layer, seq, &Context::values);
            },
            py::arg("layer"), py::arg("seq"),
            "A copy of a sequence's cached values, float32 (n_pos, n_head_kv, head_dim); order and "
            "errors as in keys().");
}

}  // namespace

void bind_kv_cache(py::module_& m) {
    KvCacheClass kv(
        m, "KVCache",
        R"(What a context remembers: rows of keys and values, and which sequences hold them.

Sequence ids are ints or `Sequence` handles. Ranges of positions are half open, [p0, p1); p1 None
means to the end. An operation that raises or returns False has changed nothing. After close() of
the context every method raises ValueError.

Errors that every method shares: ValueError for a sequence id outside 0 to n_seq_max - 1, for
positions that are negative or p0 > p1, and for a closed context; TypeError for what is no integer.)");
    kv.def("__init__", init(+[](const PyContext& context) {
               return PyKvCache{{}, made(context.shared)};
           }),
           py::detail::is_new_style_constructor(), py::arg("context"))
        .def("__repr__", &kv_cache_repr);
    bind_size(kv);
    bind_sequence_changes(kv);
    bind_sequence_queries(kv);
    bind_contents(kv);
    bind_kv_state(kv);
    bind_kv_defrag(m, kv);
}

}  // namespace plait::python
