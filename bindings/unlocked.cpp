#include "unlocked.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace plait::python {
namespace {

using namespace std::chrono_literals;

// A decode stops at its next node. What takes longer, as reading a file does, holds nothing that
// Python frees, so the end need not wait for it.
constexpr auto kPatience = 10s;

std::atomic<int> g_inside{0};  // threads in a call
std::atomic<bool> g_ending{false};
std::thread::id g_ender;       // written before g_ending
thread_local int t_depth = 0;  // of calls in this thread: a log handler may call again

bool ended_by_another() noexcept { return g_ending && g_ender != std::this_thread::get_id(); }

[[noreturn]] void wait_for_the_end() {
    for (;;) pause();
}

void end_calls() {
    g_ender = std::this_thread::get_id();
    g_ending = true;
    const py::gil_scoped_release released;  // a call may be writing a log record
    const auto last = std::chrono::steady_clock::now() + kPatience;
    while (g_inside > 0 && std::chrono::steady_clock::now() < last)
        std::this_thread::sleep_for(1ms);
}

}  // namespace

Unlocked::Unlocked() : state_(PyEval_SaveThread()) {
    if (t_depth == 0) {
        ++g_inside;  // before the look at g_ending: the end either sees this call or is seen by it
        if (ended_by_another()) {
            --g_inside;
            wait_for_the_end();
        }
    }
    ++t_depth;
}

Unlocked::~Unlocked() {
    if (--t_depth == 0) {
        --g_inside;
        if (ended_by_another()) wait_for_the_end();
    }
    // Before 3.14, Python unwinds the stack of a thread that wants the GIL too late, which no
    // destructor survives.
    try {
        PyEval_RestoreThread(state_);
    } catch (...) {
        wait_for_the_end();
    }
}

bool Unlocked::should_stop() noexcept { return t_depth == 1 && ended_by_another(); }

void watch_for_the_end() {
    py::module_::import("atexit").attr("register")(py::cpp_function(&end_calls));
    // The other threads of a process that forks are not in the child, nor are their calls.
    pthread_atfork(nullptr, nullptr, [] { g_inside = t_depth > 0 ? 1 : 0; });
}

}  // namespace plait::python
