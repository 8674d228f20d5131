// Lets Ctrl-C end a running call.
#pragma once

#include <chrono>
#include <exception>

#include "backend/backend.h"

namespace plait::python {

// Asks Python for pending signals now and then; made and asked on the calling thread, without the
// GIL, which is taken only then. Only the main thread of Python handles signals, so another one
// asks once and never again.
class PythonSignals final : public StopSignal {
public:
    PythonSignals();
    bool requested() override;
    // What the signal handler raised. With the GIL.
    [[noreturn]] void rethrow() const { std::rethrow_exception(raised_); }

private:
    bool ask_python();

    int64_t next_ns_;
    std::exception_ptr raised_;
};

}  // namespace plait::python
