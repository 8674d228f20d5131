#include "numpy.h"

namespace plait::python {
namespace {

// True for the exceptions that libraries raise if an object cannot be converted to an array. False
// for MemoryError and for exceptions of signal handlers.
bool is_conversion_error(const py::error_already_set& error) {
    for (PyObject* kind :
         {PyExc_TypeError, PyExc_ValueError, PyExc_RuntimeError, PyExc_BufferError})
        if (error.matches(kind)) return true;
    return false;
}

// Converts elements that fit T, which is int64_t or uint64_t.
template <typename Error, typename T>
Int32Array narrow_to_int32(const char* name, const py::array& array) {
    const py::array_t<T, py::array::c_style | py::array::forcecast> wide(array);
    Int32Array result(std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
    for (py::ssize_t i = 0; i < wide.size(); ++i) {
        const T x = wide.data()[i];
        if (!std::in_range<int32_t>(x))
            throw Error(
                text(name, "[", i, "] is ", x, ", expected ", INT32_MIN, " to ", INT32_MAX));
        result.mutable_data()[i] = static_cast<int32_t>(x);
    }
    return result;
}

// Converts an array of Python objects, such as integers of more than 64 bits.
template <typename Error>
Int32Array from_objects(const char* name, const py::array& array) {
    Int32Array result(std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
    py::ssize_t i = 0;
    for (const py::handle item : array.attr("flat"))
        result.mutable_data()[i++] = to_int32<Error>(name, item);
    return result;
}

}  // namespace

py::array as_array(const char* name, py::handle value, const char* expected) {
    if (PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr()) ||
        PyByteArray_Check(value.ptr()) || value.is_none())
        wrong_type(name, expected, value);
    if (!is_array(value) && py::hasattr(value, "__dlpack__")) {
        try {  // shares the memory of tensors of other libraries if they allow it
            return py::module_::import("numpy").attr("from_dlpack")(value);
        } catch (const py::error_already_set& error) {
            // Tensors that cannot be shared (unknown dtype, gradients) may still be convertible
            // below.
            if (!is_conversion_error(error)) throw;
        }
    }
    try {
        return py::array(py::reinterpret_borrow<py::object>(value));
    } catch (const py::error_already_set& error) {
        if (!is_conversion_error(error)) throw;
    }
    throw py::type_error(text(name, ": expected ", expected, ", got ", short_repr(value)));
}

bool is_numpy_bool(py::handle value) {
    const std::string_view type = Py_TYPE(value.ptr())->tp_name;
    return type == "numpy.bool" || type == "numpy.bool_";
}

template <typename Error>
Int32Array int32_array(const char* name, py::handle value) {
    py::array array = as_array(name, value);
    char kind = array.dtype().kind();
    if (kind == 'f' && !is_array(value)) {
        // A list of floats, or one such as [1, 2**63], which fits no NumPy integer type.
        array = py::module_::import("numpy").attr("array")(value, py::arg("dtype") = "object");
        kind = 'O';
    }
    if (kind == 'O') return from_objects<Error>(name, array);
    if (kind != 'i' && kind != 'u' && array.size() > 0)
        throw py::type_error(
            text(name, ": expected integers, got ", py::cast<std::string>(py::str(array.dtype()))));
    if (py::isinstance<Int32Array>(array)) return py::reinterpret_borrow<Int32Array>(array);
    if (kind == 'u') return narrow_to_int32<Error, uint64_t>(name, array);
    return narrow_to_int32<Error, int64_t>(name, array);
}

template Int32Array int32_array<BatchError>(const char*, py::handle);
template Int32Array int32_array<InvalidArgument>(const char*, py::handle);

py::array_t<bool, py::array::c_style> mask_array(const char* name, py::handle value,
                                                 py::ssize_t n) {
    const py::array array = as_array(name, value);
    if (array.dtype().kind() != 'b' && array.size() > 0)
        throw py::type_error(
            text(name, ": expected bools, got ", py::cast<std::string>(py::str(array.dtype()))));
    if (array.ndim() != 1 || array.shape(0) != n)
        throw BatchError(text(name, ": expected the shape (", n, ",), got ", shape_text(array)));
    return py::array_t<bool, py::array::c_style | py::array::forcecast>(array);
}

std::string shape_text(const py::array& array) {
    std::string result = "(";
    for (py::ssize_t i = 0; i < array.ndim(); ++i)
        result += text(i == 0 ? "" : ", ", array.shape(i));
    return result + (array.ndim() == 1 ? ",)" : ")");
}

}  // namespace plait::python
