#include <algorithm>
#include <cstring>

#include "kv_cache.h"
#include "model.h"
#include "module.h"
#include "numpy.h"
#include "sequence.h"

namespace plait::python {
namespace {

PositionRange range(py::handle p0, py::handle p1) {
    PositionRange result;
    result.begin = to_int32("p0", p0);
    if (!p1.is_none()) result.end = to_int32("p1", p1);
    return result;
}

bool seq_rm(const PyKvCache& self, const SequenceArg& seq, const Integer& p0,
            const OptionalInteger& p1) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const PositionRange positions = range(p0, p1);
    return self.session_on({sequence},
                           [&](Session& s) { return s.seq_rm(sequence.id, positions); });
}

void seq_cp(const PyKvCache& self, const SequenceArg& src, const SequenceArg& dst,
            const Integer& p0, const OptionalInteger& p1) {
    const SequenceRef from = sequence_ref("src", src, Access::read);
    const SequenceRef to = sequence_ref("dst", dst);
    const PositionRange positions = range(p0, p1);
    follow_log_level();
    self.session_on({from, to}, [&](Session& s) { s.seq_cp(from.id, to.id, positions); });
}

void seq_keep(const PyKvCache& self, const SequenceArg& seq) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    self.session_on({sequence}, [&](Session& s) { s.seq_keep(sequence.id); });
}

void seq_add(const PyKvCache& self, const SequenceArg& seq, const Integer& p0,
             const OptionalInteger& p1, const Integer& delta) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const PositionRange positions = range(p0, p1);
    const int32_t by = to_int32("delta", delta);
    self.session_on({sequence}, [&](Session& s) { s.seq_add(sequence.id, positions, by); });
}

void seq_div(const PyKvCache& self, const SequenceArg& seq, const Integer& p0,
             const OptionalInteger& p1, const Integer& divisor) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const PositionRange positions = range(p0, p1);
    const int32_t by = to_int32("divisor", divisor);
    self.session_on({sequence}, [&](Session& s) { s.seq_div(sequence.id, positions, by); });
}

void seq_discard(const PyKvCache& self, const SequenceArg& seq, const Integer& p0,
                 const Integer& p1) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const PositionRange positions = range(p0, p1);
    self.session_on({sequence}, [&](Session& s) { s.seq_discard(sequence.id, positions); });
}

std::optional<PositionBounds> bounds(const PyKvCache& self, const SequenceArg& seq) {
    const SequenceRef sequence = sequence_ref("seq", seq, Access::read);
    return self.session_on({sequence}, [&](Session& s) { return s.seq_positions(sequence.id); });
}

size_t seq_len(const PyKvCache& self, const SequenceArg& seq) {
    const SequenceRef sequence = sequence_ref("seq", seq, Access::read);
    return self.session_on({sequence}, [id = sequence.id](Session& s) {
        s.seq_positions(id);  // raises for an id outside [0, n_seq_max)
        const std::vector<Cell> cells = s.memory().cells();
        return static_cast<size_t>(std::ranges::count_if(cells, [id](const Cell& cell) {
            return std::ranges::binary_search(cell.sequences, id);
        }));
    });
}

py::array cells(const PyKvCache& self) {
    const std::vector<Cell> cells = self.session([](Session& s) { return s.memory().cells(); });
    const Context& fixed = initialized(self.shared)->fixed();
    const auto axes = static_cast<size_t>(fixed.model()->info().n_pos_per_token);
    const auto n_seq_max = static_cast<size_t>(fixed.settings().n_seq_max());
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

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

using ReadRows = SequenceRows (Session::*)(int, SequenceId);

py::array_t<float> read(const PyKvCache& self, const Integer& layer, const SequenceArg& seq,
                        ReadRows function) {
    const int32_t index = to_int32("layer", layer);
    const SequenceRef sequence = sequence_ref("seq", seq, Access::read);
    SequenceRows rows =
        self.session_on({sequence}, [&](Session& s) { return (s.*function)(index, sequence.id); });
    return take_vector(std::move(rows.values), {rows.n, rows.n_heads, rows.head_dim});
}

// Converts keys or values. None: an array without a dtype.
std::optional<Floats> float_rows(const char* name, const OptionalArrayLike& value) {
    if (value.is_none()) return std::nullopt;
    const py::array array = as_array(name, value, "an array of float32");
    if (array.dtype().kind() != 'f')
        throw py::type_error(text(name, ": expected an array of float32, got ",
                                  py::cast<std::string>(py::str(array.dtype()))));
    auto floats = Floats::ensure(array);
    if (!floats) throw py::error_already_set();
    return floats;
}

std::optional<GivenRows> given(const std::optional<Floats>& array) {
    if (!array) return std::nullopt;
    GivenRows rows;
    rows.values = {array->data(), static_cast<size_t>(array->size())};
    rows.shape.assign(array->shape(), array->shape() + array->ndim());
    return rows;
}

void write(const PyKvCache& self, const SequenceArg& seq, const Integer& layer,
           const Positions& positions, const OptionalArrayLike& keys,
           const OptionalArrayLike& values) {
    const SequenceRef sequence = sequence_ref("seq", seq);
    const int32_t index = to_int32("layer", layer);
    std::vector<Position> at;
    to_int32s<InvalidArgument>("positions", positions, at);
    const std::optional<Floats> key_array = float_rows("keys", keys);
    const std::optional<Floats> value_array = float_rows("values", values);
    const std::optional<GivenRows> key_rows = given(key_array);
    const std::optional<GivenRows> value_rows = given(value_array);
    follow_log_level();
    self.session_on({sequence},
                    [&](Session& s) { s.write(index, sequence.id, at, key_rows, value_rows); });
}

py::str kv_cache_repr(const PyKvCache& self) {
    if (self.call([](Context& c) { return c.closed(); })) return py::str("<plait.KVCache, closed>");
    const int32_t n_seq_max = initialized(self.shared)->fixed().settings().n_seq_max();
    const auto [kind, cells, used, bytes, live] = self.session([n_seq_max](Session& s) {
        const Memory& memory = s.memory();
        int32_t n_live = 0;
        for (SequenceId id = 0; id < n_seq_max; ++id) n_live += memory.positions(id).has_value();
        return std::tuple(std::string(memory.kind()), memory.n_cells(), memory.n_used(),
                          memory.layout().bytes(), n_live);
    });
    return py::str("<plait.KVCache {}: {} of {} cells used, {} of {} sequences, {:.4g} MB>")
        .format(kind, used, cells, live, n_seq_max, static_cast<double>(bytes) / 1e6);
}

void bind_size(KvCacheClass& kv) {
    const auto get = [](auto function) {
        return [function](const PyKvCache& self) {
            return self.session([&](Session& s) { return function(s.memory()); });
        };
    };
    kv.def_property_readonly("kind", get([](const Memory& m) { return std::string(m.kind()); }),
                             R"(Kind of the cache, as a str.

One of "unified", "streams", "sliding", "recurrent", "hybrid", "cross" and "none".)")
        .def_property_readonly(
            "n_streams", get([](const Memory& m) { return m.n_streams(); }),
            "Number of streams: n_seq_max if each sequence has its own rows, else 1.")
        .def_property_readonly("n_cells", get([](const Memory& m) { return m.n_cells(); }),
                               "Total number of cells.")
        .def_property_readonly(
            "n_used", get([](const Memory& m) { return m.n_used(); }),
            "Number of cells that a sequence holds or an open transaction keeps.")
        .def_property_readonly("in_transaction",
                               get([](const Memory& m) { return m.n_transactions() > 0; }),
                               "True while a transaction of the context is open.")
        .def_property_readonly("n_free",
                               get([](const Memory& m) { return m.n_cells() - m.n_used(); }),
                               "Number of cells that can be taken: n_cells - n_used.")
        .def_property_readonly("nbytes", get([](const Memory& m) { return m.layout().bytes(); }),
                               "Size of all cells in bytes, used or not.")
        .def_property_readonly(
            "n_seq_max",
            [](const PyKvCache& self) {
                return initialized(self.shared)->fixed().settings().n_seq_max();
            },
            "Max number of sequences.")
        .def_property_readonly("can_shift", get([](const Memory& m) { return m.can_shift(); }),
                               "True if positions can be changed with seq_add() and seq_div().")
        .def_property_readonly("can_partial_remove",
                               get([](const Memory& m) { return m.can_partial_remove(); }),
                               "True if part of a sequence can be removed with seq_rm().");
}

void bind_sequence_changes(KvCacheClass& kv) {
    kv.def("seq_rm", &seq_rm, py::arg("seq"), py::arg("p0") = 0, py::arg("p1") = py::none(),
           R"(Remove positions [p0, p1) from a sequence.

Cells shared with other sequences stay in those sequences. For an encoder-decoder, removing everything
(p0=0, p1=None) also removes the encoder's output.

Args:
    seq: Sequence id.
    p0: First position to remove.
    p1: End of the range, exclusive. None: the end of the sequence.

Returns:
    False if this kind of cache cannot remove that range, else True. True for an empty range.

Raises:
    ValueError: The id or the range is invalid.)")
        .def("seq_cp", &seq_cp, py::arg("src"), py::arg("dst"), py::arg("p0") = 0,
             py::arg("p1") = py::none(), R"(Copy positions [p0, p1) of one sequence to another.

Replaces the content of `dst` in that range; the rest of `dst` stays. Cells are shared if the kind
of cache supports it, otherwise copied. For an encoder-decoder, a range that begins at 0 also replaces
the encoder's output of `dst`. Does nothing if `src` equals `dst`.

Args:
    src: Id of the sequence to copy from.
    dst: Id of the sequence to copy to.
    p0: First position to copy.
    p1: End of the range, exclusive. None: the end of the sequence.

Raises:
    ValueError: An id or the range is invalid.
    UnsupportedError: This kind of cache cannot copy that range.
    CacheFull: The copy needs more cells than are free.)")
        .def("seq_keep", &seq_keep, py::arg("seq"), R"(Remove every other sequence.

Args:
    seq: Id of the sequence to keep.

Raises:
    ValueError: The id is invalid.)")
        .def("seq_add", &seq_add, py::arg("seq"), py::arg("p0"), py::arg("p1"), py::arg("delta"),
             R"(Add `delta` to positions [p0, p1) of a sequence.

Cached keys are rotated to their new positions before they are next read. Cells shared with another
sequence are copied first. Keys of layers without rotation stay as they are.

Args:
    seq: Sequence id.
    p0: First position to change.
    p1: End of the range, exclusive. None: the end of the sequence.
    delta: Number to add; may be negative.

Raises:
    ValueError: A position would become negative, or the order of positions would change.
    CacheFull: Copying shared cells needs more cells than are free.
    UnsupportedError: Tokens have several position axes, or the sequence would attend to keys that its
        window has freed.)")
        .def("seq_div", &seq_div, py::arg("seq"), py::arg("p0"), py::arg("p1"), py::arg("divisor"),
             R"(Divide positions [p0, p1) of a sequence by `divisor`, rounding down.

Several positions may become equal.

Args:
    seq: Sequence id.
    p0: First position to change.
    p1: End of the range, exclusive. None: the end of the sequence.
    divisor: At least 1.

Raises:
    ValueError: `divisor` is less than 1; other errors are those of seq_add().)")
        .def(
            "clear", [](const PyKvCache& self) { self.session([](Session& s) { s.clear(); }); },
            "Remove all sequences.");
}

void bind_sequence_queries(KvCacheClass& kv) {
    kv.def(
          "seq_pos_min",
          [](const PyKvCache& self, const SequenceArg& seq) {
              const auto held = bounds(self, seq);
              return held ? held->min : -1;
          },
          py::arg("seq"), R"(Return the smallest position of a sequence.

Args:
    seq: Sequence id.

Returns:
    The smallest position, or -1 if the sequence is empty.

Raises:
    ValueError: The id is invalid.)")
        .def(
            "seq_pos_max",
            [](const PyKvCache& self, const SequenceArg& seq) {
                const auto held = bounds(self, seq);
                return held ? held->max : -1;
            },
            py::arg("seq"), R"(Return the largest position of a sequence.

Args:
    seq: Sequence id.

Returns:
    The largest position on any axis, or -1 if the sequence is empty.

Raises:
    ValueError: The id is invalid.)")
        .def("seq_len", &seq_len, py::arg("seq"), R"(Return the number of cells of a sequence.

Args:
    seq: Sequence id.

Returns:
    The number of cells, including cells shared with other sequences.

Raises:
    ValueError: The id is invalid.)");
}

void check_named(const PyKvCache& self, const SequenceArg& seq) {
    self.session_on({sequence_ref("seq", seq)}, [](const Session&) {});
}

void bind_contents(KvCacheClass& kv) {
    kv.def(
          "check_named", &check_named, py::arg("seq"),
          R"(Check that an argument names a sequence as in methods that change it; used by export().

Args:
    seq: The argument.

Raises:
    ValueError: The id belongs to an open Sequence, or the Sequence is closed or of another context.)")
        .def(
            "_discard", &seq_discard, py::arg("seq"), py::arg("p0"), py::arg("p1"),
            R"(Remove positions [p0, p1) and move later ones back to close the gap; used by shift().

Args:
    seq: Sequence id.
    p0: First position to remove.
    p1: End of the range, exclusive.

Raises:
    UnsupportedError: This kind of cache cannot remove that range or change positions.
    CacheFull: Copying shared cells needs more cells than are free.)")
        .def("cells", &cells, R"(Return a table of the used cells, for inspection.

Returns:
    Structured ndarray with one row for each cell that a sequence holds; in a transaction, n_used
    also counts cells that only the transaction keeps. The fields are `row` (int32, storage row),
    `stream` (int32), `pos` (int32, shape (n_pos_per_token,)), `shift` (int32, rotation not yet
    applied) and `seqs` (bool, shape (n_seq_max,), True for each sequence that holds the cell).)");
}

void bind_kv_rows(KvCacheClass& kv) {
    kv.def(
          "keys",
          [](const PyKvCache& self, const Integer& layer, const SequenceArg& seq) {
              return read(self, layer, seq, &Session::keys);
          },
          py::arg("layer"), py::arg("seq"), R"(Return a copy of the cached keys of a sequence.

Args:
    layer: Layer index, from 0.
    seq: Sequence id.

Returns:
    float32 ndarray of shape (n_pos, n_head_kv, head_dim), in order of position. The keys are
    rotated for their positions; pending shifts are applied.

Raises:
    IndexError: The layer does not exist.
    ValueError: The id is invalid.
    UnsupportedError: The layer caches no keys.)")
        .def(
            "values",
            [](const PyKvCache& self, const Integer& layer, const SequenceArg& seq) {
                return read(self, layer, seq, &Session::values);
            },
            py::arg("layer"), py::arg("seq"), R"(Return a copy of the cached values of a sequence.

Args:
    layer: Layer index, from 0.
    seq: Sequence id.

Returns:
    float32 ndarray of shape (n_pos, n_head_kv, head_dim), in order of position.

Raises:
    IndexError: The layer does not exist.
    ValueError: The id is invalid.
    UnsupportedError: The layer caches no values.)")
        .def("write", &write, py::arg("seq"), py::arg("layer"), py::arg("positions"),
             py::arg("keys") = py::none(), py::arg("values") = py::none(),
             R"(Replace cached keys and values of one layer at some positions of a sequence.

The rows are as keys() and values() return them: in order of `positions`, with keys rotated for
their positions. They are rounded to the type of the cache. Cells that other sequences share are
copied first, so those sequences keep their rows; a copied cell is copied for all layers. Later
tokens attend to the new rows; outputs and cells computed before stay as they are. Nothing is
written if the call raises.

Args:
    seq: Sequence id.
    layer: Layer index, from 0.
    positions: The positions to write, in any order: an int, a range or an array of distinct
        integers. The sequence must have exactly one token at each of them.
    keys: float32 (n, n_head_kv, head_dim), one row for each position. None: keys stay as they are.
    values: float32 (n, n_head_kv, head_dim). None: values stay as they are.

Raises:
    IndexError: The layer does not exist.
    TypeError: `positions` has no integers, or `keys` or `values` no floating-point numbers.
    ValueError: The id is invalid, neither `keys` nor `values` is given, a shape is wrong, a
        position is not cached or is given twice, or a number is not finite or too large for the type of
        the cache.
    CacheFull: Copying shared cells needs more cells than are free.
    UnsupportedError: The layer caches no keys and values, for example because it is recurrent, or
        its values are part of its keys and `values` is given.

Example:
    ctx.decode(batch)
    values = ctx.kv.values(1, seq=0)
    ctx.kv.write(0, 1, range(1, 3), values=0.5 * values[1:3]))");
}

}  // namespace

void bind_kv_cache(py::module_& m) {
    KvCacheClass kv(
        m, "KVCache",
        R"(The cache of a context: rows of keys and values, and the sequences that hold them.

Methods take a `Sequence` or its id. While a Sequence is open, only methods that read the cache
accept its bare id. Position ranges are half-open, [p0, p1); a p1 of None means the end of the
sequence. A method that raises or returns False leaves the cache unchanged.

Args:
    context: The context that owns the cache.

Raises:
    ValueError: Raised by every method if a sequence id is outside [0, n_seq_max) or is that of an open
        Sequence, a Sequence is closed or of another context, a position is negative, p0 exceeds p1,
        or the context is closed.
    TypeError: Raised by every method if an argument is not an integer.)");
    kv.def("__init__", init(+[](const PyContext& context) {
               return PyKvCache{{{}, initialized(context.shared)}};
           }),
           py::detail::is_new_style_constructor(), py::arg("context"))
        .def("__repr__", &kv_cache_repr);
    bind_size(kv);
    bind_sequence_changes(kv);
    bind_sequence_queries(kv);
    bind_contents(kv);
    bind_kv_rows(kv);
    bind_kv_state(kv);
    bind_kv_defrag(m, kv);
}

}  // namespace plait::python
