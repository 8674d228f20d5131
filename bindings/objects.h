// Helpers for bound classes, including objects without __init__: T.__new__(T) calls no C++
// constructor.
#pragma once

#include <cstring>
#include <memory>
#include <new>

#include "module.h"

namespace plait::python {

// Base of classes that Python can construct. For an object without __init__, pybind11 allocates raw
// memory on first use. ZeroInitialized memory reads as empty vectors and null pointers, which
// methods detect.
struct ZeroInitialized {
    static void* operator new(size_t bytes) {
        void* memory = ::operator new(bytes);
        std::memset(memory, 0, bytes);
        return memory;
    }
    static void* operator new(size_t, void* place) { return place; }
    static void operator delete(void* memory) { ::operator delete(memory); }
};

// Returns the pointer; throws TypeError if it is null because __init__ was never called.
template <typename Pointer>
const Pointer& initialized(const Pointer& pointer) {
    if (!pointer) throw py::type_error("the object is not initialised: __init__() was not called");
    return pointer;
}

// Returns an __init__ that stores the result of `function`. Unlike py::init(function), it survives
// an allocation failure while pybind11 registers the instance; py::init would terminate the
// process. Pass it to def() with py::detail::is_new_style_constructor().
template <typename T, typename... Args>
auto init(T (*function)(Args...)) {
    return [function](py::detail::value_and_holder& self, Args... args) {
        auto value = std::make_unique<T>(function(args...));
        self.value_ptr() = value.get();
        try {
            self.type->init_instance(self.inst, &value);
        } catch (...) {
            self.value_ptr() = nullptr;
            throw;
        }
    };
}

// For classes that Python code cannot construct.
inline py::custom_type_setup not_constructible() {
    return py::custom_type_setup([](PyHeapTypeObject* type) {
        type->ht_type.tp_new = [](PyTypeObject* self, PyObject*, PyObject*) -> PyObject* {
            PyErr_Format(PyExc_TypeError, "%s objects cannot be created from Python",
                         self->tp_name);
            return nullptr;
        };
    });
}

}  // namespace plait::python
