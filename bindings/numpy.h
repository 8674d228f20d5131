// Between NumPy arrays and memory of ours. Nothing here imports NumPy before an array is seen or made.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "convert.h"

namespace plait::python {

using Int32Array = py::array_t<int32_t, py::array::c_style>;

inline bool is_array(py::handle value) { return py::isinstance<py::array>(value); }
bool is_numpy_bool(py::handle value);  // a scalar

// Anything like an array, of NumPy, of another library by DLPack, or nested lists; copied only where
// it must be. TypeError, which says what was expected, otherwise.
py::array as_array(const char* name, py::handle value, const char* expected = "an array");

// An array over memory that `owner` keeps alive; nothing is copied.
template <typename T>
py::array_t<T> view_of(T* data, std::vector<py::ssize_t> shape, py::handle owner) {
    return py::array_t<T>(std::move(shape), data, owner);
}

// An array that owns the vector; nothing is copied.
template <typename T>
py::array_t<T> take_vector(std::vector<T> values, std::vector<py::ssize_t> shape) {
    auto kept = std::make_unique<std::vector<T>>(std::move(values));
    const py::capsule owner(kept.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
    const T* data = kept.release()->data();
    return py::array_t<T>(std::move(shape), data, owner);
}

// The array itself where it is C-contiguous int32, else a copy. TypeError where the elements are no
// integers, `Error` naming the first value that does not fit.
template <typename Error>
Int32Array int32_array(const char* name, py::handle value);

// The same for bool elements; BatchError for another length or shape than (n,).
py::array_t<bool, py::array::c_style> mask_array(const char* name, py::handle value, py::ssize_t n);

std::string shape_text(const py::array& array);  // "(3, 4)"

}  // namespace plait::python
