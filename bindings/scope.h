// What the objects that open something and later close it share; see scopes.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "context.h"
#include "numpy.h"

namespace plait::python {

using Any = py::object;  // an argument of __exit__
using RowsByName = py::typing::Dict<py::str, FloatRows>;

// Throws TypeError if the object is not an initialised Context.
std::shared_ptr<SharedContext> shared_of(const ContextObject& context);

// Returns the rows of each value of a call that has been computed. Takes them out of `call`.
RowsByName arrays_by_name(const std::vector<std::string>& names, CapturedCall& call);

// Calls close() and ignores exceptions: closing fails in a signal handler that interrupted a call
// of the context.
template <typename F>
void close_noexcept(F&& close) noexcept {
    try {
        close();
    } catch (...) {
    }
}

// Binds a class as a context manager by the functions enter() and exit() of its namespace.
template <typename T>
py::class_<T> scope(py::module_& m, const char* name, const char* doc) {
    py::class_<T> result(m, name, doc);
    result.def("__enter__", [](T& self) -> T& { return enter(self); },
               py::return_value_policy::reference)
        .def("__exit__",
             [](T& self, const Any& kind, const Any& error, const Any& trace) {
                 exit(self, kind, error, trace);
             },
             py::arg("kind"), py::arg("error"), py::arg("trace"));
    return result;
}

}  // namespace plait::python
