#include "convert.h"

#include "gguf/metadata.h"
#include "numpy.h"

namespace plait::python {
namespace {

constexpr size_t kMaxReprChars = 60;

py::str decode(std::string_view bytes, const char* errors) {
    PyObject* result =
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), errors);
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(result);
}

}  // namespace

std::string short_repr(py::handle value) {
    const auto repr = py::reinterpret_steal<py::object>(PyObject_Repr(value.ptr()));
    if (!repr) {
        if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
        PyErr_Clear();  // for example an int with more digits than Python prints
        return text("a value of type ", Py_TYPE(value.ptr())->tp_name);
    }
    auto result = py::cast<std::string>(py::str(repr).attr("encode")("ascii", "backslashreplace"));
    if (result.size() > kMaxReprChars) result.replace(kMaxReprChars - 3, std::string::npos, "...");
    return result;
}

void wrong_type(const char* name, const char* expected, py::handle got) {
    throw py::type_error(text(name, ": expected ", expected, ", got ",
                              got.is_none() ? "None" : Py_TYPE(got.ptr())->tp_name));
}

py::object to_index(const char* name, py::handle value) {
    auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (index) return index;
    const py::error_already_set error;
    if (!error.matches(PyExc_TypeError)) throw error;
    // For example an array of more than one element, which has __index__.
    throw py::type_error(text(name, ": expected an integer, got ", Py_TYPE(value.ptr())->tp_name,
                              " (", py::cast<std::string>(py::str(error.value())), ")"));
}

int64_t to_int64(const char* name, py::handle value) {
    return to_int_between(name, value, INT64_MIN, INT64_MAX);
}

double to_double(const char* name, py::handle value) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1.0 && PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
        PyErr_Clear();
        wrong_type(name, "a number", value);
    }
    return number;
}

bool to_bool(const char* name, py::handle value) {
    if (value.ptr() == Py_True) return true;
    if (value.ptr() == Py_False) return false;
    if (!is_numpy_bool(value)) wrong_type(name, "a bool", value);
    return PyObject_IsTrue(value.ptr()) == 1;
}

std::string to_text(const char* name, py::handle value) {
    if (!PyUnicode_Check(value.ptr())) wrong_type(name, "a str", value);
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
    if (data == nullptr) throw py::error_already_set();  // UnicodeEncodeError for a lone surrogate
    return {data, static_cast<size_t>(size)};
}

std::string to_path(const char* name, py::handle value) {
    PyObject* bytes = nullptr;
    if (value.is_none() || PyUnicode_FSConverter(value.ptr(), &bytes) == 0) {
        if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_TypeError) == 0)
            throw py::error_already_set();
        PyErr_Clear();
        wrong_type(name, "a path", value);
    }
    return py::cast<std::string>(py::reinterpret_steal<py::bytes>(bytes));
}

py::str from_utf8(std::string_view bytes) { return decode(bytes, "surrogateescape"); }
py::str printable(std::string_view bytes) { return decode(bytes, "backslashreplace"); }

template <typename Error>
void to_int32s(const char* name, py::handle value, std::vector<int32_t>& out) {
    if (PyLong_Check(value.ptr())) {
        out.push_back(to_int32<Error>(name, value));
    } else if (is_array(value)) {
        const auto array = int32_array<Error>(name, value);
        out.insert(out.end(), array.data(), array.data() + array.size());
    } else if (PyIndex_Check(value.ptr())) {
        out.push_back(to_int32<Error>(name, value));
    } else if (!PyUnicode_Check(value.ptr()) && !PyBytes_Check(value.ptr()) &&
               !PyByteArray_Check(value.ptr()) && py::isinstance<py::iterable>(value)) {
        for (const py::handle item : value) out.push_back(to_int32<Error>(name, item));
    } else {
        wrong_type(name, "an integer or several", value);
    }
}

template void to_int32s<BatchError>(const char*, py::handle, std::vector<int32_t>&);
template void to_int32s<InvalidArgument>(const char*, py::handle, std::vector<int32_t>&);

namespace {

py::object array_value(const gguf::Array& array) {
    return std::visit(
        [&]<typename T>(const std::vector<T>& items) -> py::object {
            if constexpr (std::is_same_v<T, std::string>) {
                py::list strings(items.size());
                for (size_t i = 0; i < items.size(); ++i) strings[i] = from_utf8(items[i]);
                return strings;
            } else {
                py::array_t<T> numbers(static_cast<py::ssize_t>(items.size()), items.data());
                if (array.element != gguf::ValueType::boolean) return numbers;
                return numbers.attr("astype")("bool");
            }
        },
        array.data);
}

py::object value_of(const gguf::Value& value) {
    return std::visit(
        []<typename T>(const T& x) -> py::object {
            if constexpr (std::is_same_v<T, std::string>)
                return from_utf8(x);
            else if constexpr (std::is_same_v<T, gguf::Array>)
                return array_value(x);
            else
                return py::cast(x);
        },
        value.data());
}

}  // namespace

py::dict to_dict(const gguf::Metadata& metadata) {
    py::dict result;
    for (const gguf::Entry& entry : metadata) result[from_utf8(entry.key)] = value_of(entry.value);
    return result;
}

}  // namespace plait::python
