// The block formats of GGUF files, to and from float32.
#include <string>

#include "base/checked.h"
#include "numpy.h"
#include "tensor/convert.h"
#include "unlocked.h"

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

// The shape of `array` with another last axis.
std::vector<py::ssize_t> with_last(const py::array& array, py::ssize_t last) {
    std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
    shape.back() = last;
    return shape;
}

py::array_t<float> dequantize_rows(const ArrayLike& raw, const Text& type) {
    const DType dtype = type_named(to_text("type", type));
    const DTypeInfo& format = info(dtype);
    const py::array given = as_array("raw", raw, "an array of uint8");
    if (given.dtype().kind() != 'u' || given.itemsize() != 1)
        throw py::type_error("raw: expected an array of uint8, got " + shown(raw));
    const py::array_t<uint8_t, py::array::c_style> bytes(given);
    if (bytes.ndim() == 0) throw InvalidArgument("raw: expected the shape (rows, bytes), got ()");
    const py::ssize_t row = bytes.shape(bytes.ndim() - 1);
    if (row % format.block_bytes != 0)
        throw InvalidArgument(text("raw: ", row, " bytes a row are no multiple of the ",
                                   format.block_bytes, " bytes of a block of ", format.name));
    py::array_t<float> result(with_last(bytes, row / format.block_bytes * format.block_elements));
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
    float* to = result.mutable_data();
    const auto n = static_cast<uint64_t>(result.size());
    const Unlocked unlocked;
    dequantize(dtype, from, to, n);
    return result;
}

py::array_t<uint8_t> quantize_rows(const ArrayLike& values, const Text& type) {
    const DType dtype = type_named(to_text("type", type));
    const DTypeInfo& format = info(dtype);
    const py::array given = as_array("values", values, "an array of float32");
    if (given.dtype().kind() == 'O')
        throw py::type_error("values: expected an array of float32, got " + shown(values));
    const py::array_t<float, py::array::c_style | py::array::forcecast> floats(given);
    if (floats.ndim() == 0) throw InvalidArgument("values: expected the shape (rows, n), got ()");
    const py::ssize_t row = floats.shape(floats.ndim() - 1);
    if (row % format.block_elements != 0)
        throw InvalidArgument(text("values: ", row, " elements a row are no multiple of the ",
                                   format.block_elements, " of a block of ", format.name));
    py::array_t<uint8_t> result(
        with_last(floats, row / format.block_elements * format.block_bytes));
    const float* from = floats.data();
    auto* to = reinterpret_cast<std::byte*>(result.mutable_data());
    const auto n = static_cast<uint64_t>(floats.size());
    const Unlocked unlocked;
    quantize(dtype, from, to, n);
    return result;
}

}  // namespace

void bind_quant(py::module_& m) {
    m.def(
        "quant_types", &quant_types,
        "Names of the element types that `dequantize` reads, as GGUF tools write them; `quantize` "
        "says which of them it writes.");

    m.def("dequantize", &dequantize_rows, py::arg("raw"), py::arg("type"),
          R"(Float values of rows stored in one of GGUF's formats; the reverse of quantize().

Parameters
----------
raw : array_like of uint8, shape (rows, bytes)
    Whole blocks. Any number of leading axes.
type : str
    One of `types()`, in any case.

Returns
-------
ndarray of float32, shape (rows, n)
    Bit for bit what ggml makes of the same bytes.

Raises
------
ValueError
    Unknown type, or rows that are not whole blocks.
TypeError
    Elements that are not uint8.)");

    m.def("quantize", &quantize_rows, py::arg("values"), py::arg("type"),
          R"(Rows of float values stored in one of GGUF's formats.

Parameters
----------
values : array_like of float32, shape (rows, n)
    Whole blocks. Any number of leading axes.
type : str
    F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, Q4_K or Q6_K, in any case.

Returns
-------
ndarray of uint8, shape (rows, bytes)
    Bit for bit what ggml's reference quantiser makes of finite values; of Q4_K and Q6_K the codes with the
    least squared error that were found.

Raises
------
ValueError
    Unknown type, or rows that are not whole blocks.
UnsupportedError
    A type that can only be read.)");
}

}  // namespace plait::python
