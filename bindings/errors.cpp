// Translation of C++ exceptions to the Python exceptions of plait/errors.py.
#include "base/error.h"

#include "convert.h"
#include "module.h"

namespace plait::python {
namespace {

// Classes of plait.errors, never released, so that translation works at any time.
struct Classes {
    PyObject* batch = nullptr;
    PyObject* model = nullptr;
    PyObject* model_not_found = nullptr;
    PyObject* cache_full = nullptr;
    PyObject* state = nullptr;
    PyObject* state_not_found = nullptr;
    PyObject* backend = nullptr;
    PyObject* out_of_memory = nullptr;
    PyObject* unsupported = nullptr;
};
Classes g_classes;

// The message may contain bytes of a file that are not UTF-8.
void set_error(PyObject* kind, const std::exception& error) {
    PyErr_SetObject(kind, printable(error.what()).ptr());
}

void raise_cache_full(const CacheFull& error) {
    const auto exception =
        py::handle(g_classes.cache_full)(printable(error.what()), error.needed, error.free);
    PyErr_SetObject(g_classes.cache_full, exception.ptr());
}

void translate(std::exception_ptr pointer) {
    if (!pointer) return;
    try {
        std::rethrow_exception(pointer);
    } catch (const BatchError& error) {
        set_error(g_classes.batch, error);
    } catch (const ModelNotFound& error) {
        set_error(g_classes.model_not_found, error);
    } catch (const ModelError& error) {
        set_error(g_classes.model, error);
    } catch (const CacheFull& error) {
        raise_cache_full(error);
    } catch (const StateNotFound& error) {
        set_error(g_classes.state_not_found, error);
    } catch (const StateError& error) {
        set_error(g_classes.state, error);
    } catch (const OutOfMemory& error) {
        set_error(g_classes.out_of_memory, error);
    } catch (const BackendError& error) {
        set_error(g_classes.backend, error);
    } catch (const UnsupportedError& error) {
        set_error(g_classes.unsupported, error);
    } catch (const InvalidArgument& error) {
        set_error(PyExc_ValueError, error);
    } catch (const OutOfRange& error) {
        set_error(PyExc_IndexError, error);
    } catch (const InternalError& error) {
        set_error(PyExc_SystemError, error);
    }
}

// Exports a class of `errors` from `m` and returns a new reference to it.
PyObject* export_class(py::module_& m, const py::module_& errors, const char* name) {
    py::object found = errors.attr(name);
    m.attr(name) = found;
    return found.release().ptr();
}

}  // namespace

void bind_errors(py::module_& m) {
    const auto errors = py::module_::import("plait.errors");
    export_class(m, errors, "Error");
    g_classes = {
        .batch = export_class(m, errors, "BatchError"),
        .model = export_class(m, errors, "ModelError"),
        .model_not_found = py::object(errors.attr("ModelNotFoundError")).release().ptr(),
        .cache_full = export_class(m, errors, "CacheFull"),
        .state = export_class(m, errors, "StateError"),
        .state_not_found = py::object(errors.attr("StateNotFoundError")).release().ptr(),
        .backend = export_class(m, errors, "BackendError"),
        .out_of_memory = py::object(errors.attr("OutOfMemoryError")).release().ptr(),
        .unsupported = export_class(m, errors, "UnsupportedError"),
    };
    py::register_exception_translator(&translate);
}

}  // namespace plait::python
