// KVCache methods that read and write keys and values.
#include <optional>
#include <span>

#include "kv_cache.h"
#include "numpy.h"
#include "sequence.h"

namespace plait::python {
namespace {

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
    self.session_on({sequence}, [&](Session& s) {
        s.write(index, sequence.id, at, key_rows, value_rows);
    });
}

}  // namespace

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
    keys = ctx.kv.keys(3, seq)
    ctx.kv.write(seq, 3, range(4, 8), keys=0.5 * keys[4:8]))");
}

}  // namespace plait::python
