#include "signals.h"

#include <time.h>

#include <atomic>
#include <climits>
#include <exception>
#include <semaphore>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/stop.h"
#include "gil_release.h"
#include "module.h"

namespace plait::python {
namespace {

// Users notice a delay of 250 ms, and one node of a large prompt can take 100 ms.
constexpr int64_t kPeriodNs = 20'000'000;

// Called between any two nodes of a plan, so it must be cheap.
int64_t now_ns() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
#else
    using std::chrono::nanoseconds, std::chrono::steady_clock;
    return std::chrono::duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
#endif
}

}  // namespace

PythonSignals::PythonSignals() : next_ns_(now_ns() + kPeriodNs) {}

bool PythonSignals::requested() {
    if (GilRelease::should_stop()) return true;
    if (now_ns() < next_ns_) return false;
    next_ns_ = now_ns() + kPeriodNs;
    return check_python();
}

bool PythonSignals::check_python() {
    const py::gil_scoped_acquire locked;
    try {
        const auto threading = py::module_::import("threading");
        if (!threading.attr("main_thread")().is(threading.attr("current_thread")())) {
            next_ns_ = INT64_MAX;
            return false;
        }
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        return false;
    } catch (const py::error_already_set&) {
        raised_ = std::current_exception();
        return true;
    }
}

void call_interruptibly(const std::function<void()>& f) {
    PythonSignals signals;
    std::atomic<bool> stop = false;
    std::exception_ptr error;
    std::binary_semaphore done(0);
    const auto run = [&] {
        try {
            const StopScope scope(stop);
            f();
        } catch (...) {
            error = std::current_exception();
        }
        done.release();
    };
    std::jthread thread;
    try {
        thread = std::jthread(run);
    } catch (const std::system_error&) {
        run();
    }
    while (!done.try_acquire_for(std::chrono::nanoseconds(kPeriodNs)))
        if (!stop && signals.requested()) stop = true;
    thread = {};
    if (signals.raised()) {
        const py::gil_scoped_acquire locked;
        signals.rethrow();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace plait::python
