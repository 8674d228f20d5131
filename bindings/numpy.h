// Conversion between NumPy arrays and C++ memory. NumPy is imported when the first array is used.
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
bool is_numpy_bool(py::handle value);  // True for a scalar of type numpy.bool

// Converts a NumPy array, a tensor of another library (by DLPack) or nested lists; copies only if
// necessary. Throws TypeError with `expected` for other objects.
py::array as_array(const char* name, py::handle value, const char* expected = "an array");

// Returns an array that refers to memory that `owner` keeps alive.
template <typename T>
py::array_t<T> view_of(T* data, std::vector<py::ssize_t> shape, py::handle owner) {
    return py::array_t<T>(std::move(shape), data, owner);
}

// Returns an array that owns the vector.
template <typename T>
py::array_t<T> take_vector(std::vector<T> values, std::vector<py::ssize_t> shape) {
    auto kept = std::make_unique<std::vector<T>>(std::move(values));
    const py::capsule owner(kept.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
    const T* data = kept.release()->data();
    return py::array_t<T>(std::move(shape), data, owner);
}

// Returns the array itself if it is C-contiguous int32, else a converted copy. Throws TypeError if
// the elements are not integers, and `Error` with the first value that does not fit.
template <typename Error>
Int32Array int32_array(const char* name, py::handle value);

// The same for bool elements. Throws BatchError if the shape is not (n,).
py::array_t<bool, py::array::c_style> mask_array(const char* name, py::handle value, py::ssize_t n);

std::string shape_text(const py::array& array);  // such as "(3, 4)"

}  // namespace plait::python
