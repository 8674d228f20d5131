// Objects that Python holds without having made them: T.__new__(T) calls no constructor of ours.
#pragma once

#include <cstring>
#include <memory>
#include <new>

#include "module.h"

namespace plait::python {

// Base of classes that Python can make. pybind11 gives an object that was never constructed raw
// memory at its first use; as zeros it is empty vectors and null pointers, which methods find.
struct Zeroed {
    static void* operator new(size_t bytes) {
        void* memory = ::operator new(bytes);
        std::memset(memory, 0, bytes);
        return memory;
    }
    static void* operator new(size_t, void* place) { return place; }
    static void operator delete(void* memory) { ::operator delete(memory); }
};

// What a null pointer in such an object means.
template <typename Pointer>
const Pointer& made(const Pointer& pointer) {
    if (!pointer)
        throw py::type_error("the object was never initialised: __init__() was not called");
    return pointer;
}

// __init__ of what `function` makes; py::init(function) ends the process where memory is short, as
// it enters the object among those that pybind11 knows when nothing is caught any more. Given to
// def() with py::detail::is_new_style_constructor().
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

// For classes that Python cannot make at all.
inline py::custom_type_setup only_ours() {
    return py::custom_type_setup([](PyHeapTypeObject* type) {
        type->ht_type.tp_new = [](PyTypeObject* self, PyObject*, PyObject*) -> PyObject* {
            PyErr_Format(PyExc_TypeError, "%s objects cannot be made from Python", self->tp_name);
            return nullptr;
        };
    });
}

}  // namespace plait::python
