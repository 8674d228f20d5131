// Lets Ctrl-C end a running call.
#pragma once

#include <chrono>
#include <exception>
#include <functional>

#include "backend/backend.h"

namespace plait::python {

// Checks periodically for pending Python signals. Constructed and called on the thread of the call
// without the GIL, which it takes only for a check. Only the main thread of Python handles signals,
// so on other threads the first check is the last.
class PythonSignals final : public StopSignal {
public:
    PythonSignals();
    bool requested() override;
    bool raised() const { return raised_ != nullptr; }
    // Throws the exception of the signal handler. Requires the GIL.
    [[noreturn]] void rethrow() const { std::rethrow_exception(raised_); }

private:
    bool check_python();

    int64_t next_ns_;
    std::exception_ptr raised_;
};

// Calls f() on another thread and runs Python's signal handlers on this one meanwhile, so a handler
// may wait for a lock that f() holds. If a handler raises, check_stop() in f() throws Interrupted,
// and the exception of the handler is thrown once f() has ended. Requires that the GIL is released.
void call_interruptibly(const std::function<void()>& f);

}  // namespace plait::python
