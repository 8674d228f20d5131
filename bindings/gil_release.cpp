#include "gil_release.h"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <atomic>
#include <chrono>
#include <thread>

namespace plait::python {
namespace {

using namespace std::chrono_literals;

// A decode stops at its next node. Longer operations, such as reading a file, use no memory that
// Python frees, so the exit does not need to wait for them.
constexpr auto kMaxExitWait = 10s;

std::atomic<int> g_running_calls{0};  // number of threads in a call
std::atomic<bool> g_exiting{false};
std::thread::id g_exiting_thread;  // written before g_exiting
thread_local int t_depth = 0;      // nesting of calls in this thread: a log handler may call again

bool exiting_in_other_thread() noexcept {
    return g_exiting && g_exiting_thread != std::this_thread::get_id();
}

[[noreturn]] void wait_for_exit() {
    for (;;) std::this_thread::sleep_for(1h);
}

void stop_calls() {
    g_exiting_thread = std::this_thread::get_id();
    g_exiting = true;
    const py::gil_scoped_release released;  // a call may need the GIL to write a log record
    const auto last = std::chrono::steady_clock::now() + kMaxExitWait;
    while (g_running_calls > 0 && std::chrono::steady_clock::now() < last)
        std::this_thread::sleep_for(1ms);
}

}  // namespace

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {
    if (t_depth == 0) {
        // Counted before g_exiting is read, so that either stop_calls() sees this call or this call
        // sees g_exiting.
        ++g_running_calls;
        if (exiting_in_other_thread()) {
            --g_running_calls;
            wait_for_exit();
        }
    }
    ++t_depth;
}

GilRelease::~GilRelease() {
    if (--t_depth == 0) {
        --g_running_calls;
        if (exiting_in_other_thread()) wait_for_exit();
    }
    // Before 3.14, Python unwinds the stack of a thread that requests the GIL after finalisation,
    // which terminates the process in a destructor.
    try {
        PyEval_RestoreThread(state_);
    } catch (...) {
        wait_for_exit();
    }
}

bool GilRelease::should_stop() noexcept { return t_depth == 1 && exiting_in_other_thread(); }

void register_exit_handler() {
    py::module_::import("atexit").attr("register")(py::cpp_function(&stop_calls));
#if !defined(_WIN32)
    // A forked child process has only the forking thread, so only its call is running.
    pthread_atfork(nullptr, nullptr, [] { g_running_calls = t_depth > 0 ? 1 : 0; });
#endif
}

}  // namespace plait::python
