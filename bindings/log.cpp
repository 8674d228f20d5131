#include "base/log.h"

#include <mutex>

#include "convert.h"
#include "module.h"

namespace plait::python {
namespace {

constexpr int kSilent = 1000;  // above every level

// Never released: records may arrive until the process exits.
PyObject* g_logger = nullptr;

std::mutex g_level_mutex;
int g_level = kSilent;  // of the sink

int level_of(PyObject* logger) {
    const py::object level = py::getattr(logger, "level", py::none());
    return PyLong_Check(level.ptr()) ? static_cast<int>(PyLong_AsLong(level.ptr())) : 0;
}

// logging.Logger.getEffectiveLevel()
int effective_level() {
    auto logger = py::reinterpret_borrow<py::object>(g_logger);
    while (!logger.is_none()) {
        const int level = level_of(logger.ptr());
        if (level != 0) return level;
        logger = py::getattr(logger, "parent", py::none());
    }
    return kSilent;
}

void emit(LogLevel level, const std::string& message) {
    const py::gil_scoped_acquire locked;
    try {
        py::handle(g_logger).attr("log")(static_cast<int>(level), printable(message));
    } catch (py::error_already_set& error) {
        error.discard_as_unraisable("plait: writing a log record");
    }
}

void set_level(int level) {
    const std::lock_guard lock(g_level_mutex);
    if (level == g_level) return;
    g_level = level;
    if (level >= kSilent)
        set_log_sink(nullptr, LogLevel::error);
    else
        set_log_sink(&emit, static_cast<LogLevel>(level));
}

}  // namespace

void follow_log_level() { set_level(effective_level()); }

void bind_log(py::module_&) {
    const auto logging = py::module_::import("logging");
    py::object logger = logging.attr("getLogger")("plait");
    logger.attr("addHandler")(logging.attr("NullHandler")());
    g_logger = logger.release().ptr();
    follow_log_level();
    // No record may reach a finalised interpreter.
    py::module_::import("atexit").attr("register")(py::cpp_function([] { set_level(kSilent); }));
}

}  // namespace plait::python
