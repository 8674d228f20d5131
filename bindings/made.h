// Objects that Python holds without having made them: T.__new__(T) calls no constructor of ours.
#pragma once

#include <cstring>
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
