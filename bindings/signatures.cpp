// What every call of a bound function has in common: signatures, TypeErrors that name the argument
// at fault, and the lock of the object on builds of Python without the GIL.
//
// pybind11 writes signatures into docstrings, where inspect.signature() does not find them. Its
// TypeError for a wrong call lists all signatures. This file adds the signatures in the format of
// CPython ("name(arguments)\n--\n\n" before the docstring, which __doc__ omits). It replaces the
// list in the TypeError by the argument that is unknown, missing, or of the wrong type.
//
// Without the GIL, calls of the methods of one object would run at the same time. They lock the
// object with a critical section of CPython, which is unlocked where the GIL would be: while
// GilRelease exists, or while the thread waits for another lock (docs/decisions/0054).
#include <pybind11/critical_section.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "convert.h"

namespace plait::python {
namespace {

using Record = py::detail::function_record;
using Dispatch = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

constexpr const char* kMismatch = "(): incompatible ";
constexpr const char* kEndOfSignature = "\n--\n\n";

Dispatch g_dispatch = nullptr;  // of pybind11

std::string argument_name(const Record& record, size_t i) {
    const char* name = i < record.args.size() ? record.args[i].name : nullptr;
    if (name != nullptr && *name != '\0') return name;
    return record.is_method && i == 0 ? "self" : text("arg", i);
}

bool has_default(const Record& record, size_t i) {
    return i < record.args.size() && record.args[i].value;
}

// Returns "(self, token, pos=None)", from argument `first` on.
std::string signature_text(const Record& record, size_t first) {
    std::string result = "(";
    for (size_t i = first; i < record.nargs; ++i) {
        if (i > first) result += ", ";
        if (i == record.nargs_pos) result += "*, ";
        result += argument_name(record, i);
        if (has_default(record, i)) result += text("=", record.args[i].descr);
    }
    return result + ")";
}

// "Context.decode", or "Context" for its __init__.
std::string call_name(const Record& record) {
    if (!record.scope || !PyType_Check(record.scope.ptr())) return record.name;
    const auto owner = py::cast<std::string>(record.scope.attr("__name__"));
    return record.is_constructor ? owner : text(owner, ".", record.name);
}

// The arguments of a call, positional ones first.
struct Given {
    std::vector<py::handle> values;
    std::vector<std::string> names;  // of the last values

    Given(PyObject* const* args, Py_ssize_t n_positional, PyObject* keywords) {
        const Py_ssize_t n_named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
        values.assign(args, args + n_positional + n_named);
        for (Py_ssize_t i = 0; i < n_named; ++i)
            names.push_back(to_text("keyword", PyTuple_GET_ITEM(keywords, i)));
    }
    size_t n_positional() const { return values.size() - names.size(); }
    // Returns the value of argument i; null if it was not given.
    py::handle value(const std::string& name, size_t i) const {
        if (i < n_positional()) return values[i];
        const auto found = std::ranges::find(names, name);
        if (found == names.end()) return {};
        return values[n_positional() + static_cast<size_t>(found - names.begin())];
    }
};

std::string unknown_keyword(const Record& record, const std::string& name) {
    py::list known;
    std::string all;
    for (size_t i = record.is_method ? 1 : 0; i < record.nargs; ++i) {
        known.append(argument_name(record, i));
        all += (all.empty() ? "" : ", ") + argument_name(record, i);
    }
    const py::list close = py::module_::import("difflib").attr("get_close_matches")(name, known, 1);
    const std::string unknown = text("got an unexpected keyword argument '", name, "'");
    if (!close.empty())
        return text(unknown, "; did you mean ", py::cast<std::string>(close[0]), "?");
    return all.empty() ? text(unknown, "; it takes none") : text(unknown, "; expected ", all);
}

// Returns the annotation of an argument in the signature that pybind11 wrote.
std::string annotation(const Record& record, const std::string& name) {
    const std::string_view all = record.signature;
    const auto begin = all.find(name + ": ");
    if (begin == all.npos) return "";
    const auto from = begin + name.size() + 2;
    return std::string(all.substr(from, all.find_first_of(",)= ", from) - from));
}

// Returns what is wrong with the types of the arguments. Only arguments of bound classes can
// mismatch; the others accept any object and name themselves in errors.
std::string wrong_types(const Record& record, const Given& given) {
    const std::string prefix = "plait._core.";
    std::string types;
    for (size_t i = record.is_method ? 1 : 0; i < record.nargs; ++i) {
        const std::string name = argument_name(record, i);
        const py::handle value = given.value(name, i);
        if (!value) continue;
        const char* type = value.is_none() ? "None" : Py_TYPE(value.ptr())->tp_name;
        const std::string expected = annotation(record, name);
        if (expected.starts_with(prefix)) {
            const std::string plain = expected.substr(prefix.size());
            if (!py::isinstance(value, py::module_::import("plait._core").attr(plain.c_str())))
                return text(name, ": expected a ", plain, ", got ", type);
        }
        types += text(types.empty() ? "" : ", ", name, " is ", type);
    }
    return text("an argument has the wrong type (", types, "); the signature is ",
                record.signature);
}

std::string problem(const Record& record, const Given& given) {
    const size_t implicit = record.is_method ? 1 : 0;
    for (const std::string& name : given.names) {
        size_t i = 0;
        while (i < record.nargs && argument_name(record, i) != name) ++i;
        if (i == record.nargs) return unknown_keyword(record, name);
        if (i < given.n_positional()) return text("got several values for argument '", name, "'");
    }
    if (given.n_positional() > record.nargs_pos) {
        const size_t n = record.nargs_pos - implicit;
        const std::string most = text("takes ", n, " positional argument", n == 1 ? "" : "s",
                                      ", but ", given.n_positional() - implicit, " were given");
        if (record.nargs_pos == record.nargs) return most;
        return text(most, "; name the others, as in ", argument_name(record, record.nargs_pos), "=",
                    short_repr(given.values[record.nargs_pos]));
    }
    for (size_t i = implicit; i < record.nargs; ++i)
        if (!has_default(record, i) && !given.value(argument_name(record, i), i))
            return text("missing the argument '", argument_name(record, i), "'");
    if (given.n_positional() < implicit) return "missing the argument 'self'";
    return wrong_types(record, given);
}

// Replaces the error of a call that matches no signature.
void explain(const Record& record, const Given& given) {
    py::error_already_set error;
    const auto message = py::cast<std::string>(py::str(error.value()));
    if (!message.starts_with(text(record.name, kMismatch))) {
        error.restore();
        return;
    }
    const std::string found = problem(record, given);
    // Errors that begin with the name of an argument are kept, since they are those of its
    // conversion.
    const bool names_itself = found.find(": expected") != std::string::npos;
    PyErr_SetString(PyExc_TypeError,
                    (names_itself ? found : text(call_name(record), "() ", found)).c_str());
}

// Calls pybind11's function; locks the object of a method on builds without the GIL.
PyObject* dispatch_locked(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* keywords) {
#if defined(Py_GIL_DISABLED)
    const bool is_method = py::detail::function_record_ptr_from_PyObject(self)->is_method;
    const py::scoped_critical_section lock(is_method && n > 0 ? args[0] : nullptr);
#endif
    return g_dispatch(self, args, n, keywords);
}

PyObject* dispatch(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* keywords) {
    PyObject* result = dispatch_locked(self, args, n, keywords);
    if (result != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) return result;
    try {
        explain(*py::detail::function_record_ptr_from_PyObject(self), Given(args, n, keywords));
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const std::exception&) {
        if (PyErr_Occurred() == nullptr) PyErr_NoMemory();
    }
    return nullptr;
}

// Makes Python call `with` instead of pybind11's function.
void intercept(PyCFunctionObject& function, Dispatch with) {
    g_dispatch = reinterpret_cast<Dispatch>(reinterpret_cast<void (*)()>(function.m_ml->ml_meth));
    function.m_ml->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(with));
}

void describe_function(py::handle object) {
    if (PyInstanceMethod_Check(object.ptr())) object = PyInstanceMethod_GET_FUNCTION(object.ptr());
    if (!PyCFunction_Check(object.ptr())) return;
    auto* function = reinterpret_cast<PyCFunctionObject*>(object.ptr());
    PyObject* self = PyCFunction_GET_SELF(object.ptr());
    const Record* record =
        self == nullptr ? nullptr : py::detail::function_record_ptr_from_PyObject(self);
    if (record == nullptr || function->m_ml->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) return;
    const char* doc = function->m_ml->ml_doc == nullptr ? "" : function->m_ml->ml_doc;
    const std::string described =
        text(record->name, signature_text(*record, 0), kEndOfSignature, doc);
    // pybind11 releases the docstring with free().
    char* copy = strdup(described.c_str());
    if (copy == nullptr) throw std::bad_alloc();
    std::free(const_cast<char*>(function->m_ml->ml_doc));
    function->m_ml->ml_doc = copy;
    intercept(*function, &dispatch);
}

// Getters and setters show no signature, so only the lock is added.
void describe_property([[maybe_unused]] py::handle property) {
#if defined(Py_GIL_DISABLED)
    for (const char* part : {"fget", "fset"}) {
        const py::object function = property.attr(part);
        if (PyCFunction_Check(function.ptr()))
            intercept(*reinterpret_cast<PyCFunctionObject*>(function.ptr()), &dispatch_locked);
    }
#endif
}

// The signature of a class is that of its __init__.
void describe_class(py::handle object) {
    auto* type = reinterpret_cast<PyTypeObject*>(object.ptr());
    const py::dict members = object.attr("__dict__");
    for (const auto& [name, member] : members) {
        if (PyObject_TypeCheck(member.ptr(), &PyProperty_Type) != 0) describe_property(member);
        const bool is_static = PyObject_TypeCheck(member.ptr(), &PyStaticMethod_Type) != 0;
        describe_function(is_static ? py::object(member.attr("__func__"))
                                    : py::reinterpret_borrow<py::object>(member));
    }
    if (!members.contains("__init__")) return;
    const py::object init = members["__init__"];
    if (!PyInstanceMethod_Check(init.ptr())) return;
    const Record* record = py::detail::function_record_ptr_from_PyObject(
        PyCFunction_GET_SELF(PyInstanceMethod_GET_FUNCTION(init.ptr())));
    const char* doc = type->tp_doc == nullptr ? "" : type->tp_doc;
    const std::string described = text(py::cast<std::string>(object.attr("__name__")),
                                       signature_text(*record, 1), kEndOfSignature, doc);
    // CPython releases the docstring of a class with PyObject_Free().
    auto* copy = static_cast<char*>(PyObject_Malloc(described.size() + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, described.c_str(), described.size() + 1);
    PyObject_Free(const_cast<char*>(type->tp_doc));
    type->tp_doc = copy;
}

}  // namespace

void describe_signatures(py::module_& m) {
    for (const auto& [name, member] : py::dict(m.attr("__dict__"))) {
        const bool is_own = py::getattr(member, "__module__", py::none()).equal(m.attr("__name__"));
        if (PyType_Check(member.ptr()) && is_own)
            describe_class(member);
        else
            describe_function(member);
    }
}

}  // namespace plait::python
