// Conversion between float32 and the block formats of GGUF files.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "gil_release.h"
#include "numpy.h"
#include "tensor/convert.h"
#include "tensor/search.h"

namespace plait::python {
namespace {

DType type_named(const std::string& name) {
    const auto dtype = dtype_from_name(name);
    if (dtype && *dtype != DType::i32) return *dtype;
    std::string known;
    for (const DTypeInfo& type : all_dtypes())
        if (type.dtype != DType::i32) known += text(known.empty() ? "" : ", ", type.name);
    throw InvalidArgument(text("type: expected one of ", known, ", got \"", name, "\""));
}

py::typing::List<py::str> quant_types() {
    py::list names;
    for (const DTypeInfo& type : all_dtypes())
        if (type.dtype != DType::i32) names.append(py::str(std::string(type.name)));
    return names;
}

// Returns the shape of `array` with the last axis replaced.
std::vector<py::ssize_t> with_last_axis(const py::array& array, py::ssize_t last) {
    std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
    shape.back() = last;
    return shape;
}

py::array_t<float> dequantize_rows(const ArrayLike& raw, const Text& type) {
    const DType dtype = type_named(to_text("type", type));
    const DTypeInfo& format = info(dtype);
    const py::array given = as_array("raw", raw, "an array of uint8");
    if (given.dtype().kind() != 'u' || given.itemsize() != 1)
        throw py::type_error("raw: expected an array of uint8, got " + short_repr(raw));
    const py::array_t<uint8_t, py::array::c_style> bytes(given);
    if (bytes.ndim() == 0) throw InvalidArgument("raw: expected the shape (rows, bytes), got ()");
    const py::ssize_t row = bytes.shape(bytes.ndim() - 1);
    if (row % format.block_bytes != 0)
        throw InvalidArgument(text("raw: rows have ", row, " bytes; expected a multiple of ",
                                   format.block_bytes, ", the size of a block of ", format.name));
    py::array_t<float> result(
        with_last_axis(bytes, row / format.block_bytes * format.block_elements));
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
    float* to = result.mutable_data();
    const auto n = static_cast<uint64_t>(result.size());
    const GilRelease released;
    dequantize(dtype, from, to, n);
    return result;
}

// A block stores no infinity and no NaN; its quantiser would turn them into arbitrary numbers.
void check_finite(const float* values, uint64_t n, std::string_view type) {
    const float* const end = values + n;
    const float* const found =
        std::find_if_not(values, end, [](float value) { return std::isfinite(value); });
    if (found != end)
        throw InvalidArgument(text("values: element ", found - values, " is ", *found, ", but ",
                                   type, " stores only finite numbers"));
}

// Returns the weights of the columns, checked; empty for None.
py::array_t<float, py::array::c_style> column_weights(const py::object& weights, py::ssize_t row) {
    if (weights.is_none()) return {};
    const py::array given = as_array("weights", weights, "an array of float32");
    if (given.dtype().kind() == 'O' || given.dtype().kind() == 'c')
        throw py::type_error("weights: expected an array of float32, got " + short_repr(weights));
    const py::array_t<float, py::array::c_style | py::array::forcecast> floats(given);
    if (floats.ndim() != 1 || floats.shape(0) != row)
        throw InvalidArgument(text("weights: expected the shape (", row,
                                   ",), one number for each column of values, got ",
                                   std::string(py::str(given.attr("shape")))));
    const float* const data = floats.data();
    const float* const found = std::find_if_not(
        data, data + row, [](float weight) { return std::isfinite(weight) && weight >= 0; });
    if (found != data + row)
        throw InvalidArgument(text("weights: element ", found - data, " is ", *found,
                                   "; expected finite numbers that are not negative"));
    return floats;
}

py::array_t<uint8_t> quantize_rows(const ArrayLike& values, const Text& type,
                                   const OptionalArrayLike& weights, py::handle search) {
    const DType dtype = type_named(to_text("type", type));
    const DTypeInfo& format = info(dtype);
    const py::array given = as_array("values", values, "an array of float32");
    if (given.dtype().kind() == 'O')
        throw py::type_error("values: expected an array of float32, got " + short_repr(values));
    const py::array_t<float, py::array::c_style | py::array::forcecast> floats(given);
    if (floats.ndim() == 0) throw InvalidArgument("values: expected the shape (rows, n), got ()");
    const py::ssize_t row = floats.shape(floats.ndim() - 1);
    if (row % format.block_elements != 0)
        throw InvalidArgument(text("values: rows have ", row, " elements; expected a multiple of ",
                                   format.block_elements, ", the size of a block of ",
                                   format.name));
    const auto columns = column_weights(weights, row);
    const bool searching = to_bool("search", search);
    py::array_t<uint8_t> result(
        with_last_axis(floats, row / format.block_elements * format.block_bytes));
    const float* from = floats.data();
    const float* importance = weights.is_none() ? nullptr : columns.data();
    auto* to = reinterpret_cast<std::byte*>(result.mutable_data());
    const auto n = static_cast<uint64_t>(floats.size());
    const GilRelease released;
    if (format.block_elements > 1) check_finite(from, n, format.name);
    if (format.block_elements > 1 && (searching || importance)) {
        const auto width = static_cast<uint64_t>(row);
        quantize_search(dtype, from, importance, width, width > 0 ? n / width : 0, to);
    } else {
        quantize(dtype, from, to, n);
    }
    return result;
}

}  // namespace

void bind_quant(py::module_& m) {
    m.def("quant_types", &quant_types,
          R"(Return the names of the element types that dequantize() accepts, as in GGUF.

quantize() accepts only some of them.)");

    m.def("dequantize", &dequantize_rows, py::arg("raw"), py::arg("type"),
          R"(Convert rows from a GGUF element type to float32.

The results have the same bits as those of ggml.

Args:
    raw: uint8 array of shape (..., bytes); each row must consist of whole blocks.
    type: Element type, one of `types()`, in upper or lower case.

Returns:
    float32 ndarray of shape (..., n).

Raises:
    ValueError: The type is unknown, or the rows are not whole blocks.
    TypeError: The elements are not uint8.)");

    m.def("quantize", &quantize_rows, py::arg("values"), py::arg("type"),
          py::arg("weights") = py::none(), py::kw_only(), py::arg("search") = false,
          R"(Convert rows of float32 to a GGUF element type.

Without `weights` and `search`, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0 and IQ4_NL have the same bits as those of
ggml's reference quantiser. All other cases search for the codes with the least squared error.

Args:
    values: float32 array of shape (..., n); each row must consist of whole blocks.
    type: Any of `types()`, in upper or lower case.
    weights: float32 array of shape (n,), the importance of each column: the sum of weights * error ** 2
        is minimised. An importance matrix has such weights.
    search: Search for the codes with the least squared error for every block type.

Returns:
    uint8 ndarray of shape (..., bytes).

Raises:
    ValueError: The type is unknown, the rows are not whole blocks, a value is NaN or infinite and
        the type is not F32, F16 or BF16, or `weights` has another shape, or negative or infinite elements.
    UnsupportedError: The type can only be read.)");
}

}  // namespace plait::python
