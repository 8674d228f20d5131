// C++ exceptions become Python's. The classes are written in Python (plait/errors.py).
#include "base/error.h"

#include "module.h"

namespace plait::python {
namespace {

// Classes of plait.errors, held for the life of the process: translation must work at any time.
struct Classes {
    PyObject* batch = nullptr;
    PyObject* model = nullptr;
    PyObject* cache_full = nullptr;
    PyObject* state = nullptr;
    PyObject* backend = nullptr;
    PyObject* unsupported = nullptr;
};
Classes g_classes;

void raise_cache_full(const CacheFull& error) {
    const auto made = py::handle(g_classes.cache_full)(error.what(), error.needed, error.free);
    PyErr_SetObject(g_classes.cache_full, made.ptr());
}

void translate(std::exception_ptr pointer) {
    if (!pointer) return;
    try {
        std::rethrow_exception(pointer);
    } catch (const BatchError& error) {
        PyErr_SetString(g_classes.batch, error.what());
    } catch (const ModelError& error) {
        PyErr_SetString(g_classes.model, error.what());
    } catch (const CacheFull& error) {
        raise_cache_full(error);
    } catch (const StateError& error) {
        PyErr_SetString(g_classes.state, error.what());
    } catch (const BackendError& error) {
        PyErr_SetString(g_classes.backend, error.what());
    } catch (const UnsupportedError& error) {
        PyErr_SetString(g_classes.unsupported, error.what());
    } catch (const InvalidArgument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const OutOfRange& error) {
        PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const InternalError& error) {
        PyErr_SetString(PyExc_SystemError, error.what());
    }
}

PyObject* take(py::module_& m, const py::module_& errors, const char* name) {
    py::object found = errors.attr(name);
    m.attr(name) = found;
    return found.release().ptr();
}

}  // namespace

void bind_errors(py::module_& m) {
    const auto errors = py::module_::import("plait.errors");
    take(m, errors, "Error");
    g_classes = {
        .batch = take(m, errors, "BatchError"),
        .model = take(m, errors, "ModelError"),
        .cache_full = take(m, errors, "CacheFull"),
        .state = take(m, errors, "StateError"),
        .backend = take(m, errors, "BackendError"),
        .unsupported = take(m, errors, "UnsupportedError"),
    };
    py::register_exception_translator(&translate);
}

}  // namespace plait::python
