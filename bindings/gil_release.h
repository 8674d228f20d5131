// Scoped release of the GIL.
#pragma once

#include "module.h"

namespace plait::python {

// Releases the GIL for its lifetime. If the interpreter exits meanwhile, it frees objects that the
// call uses, such as those held by frames of daemon threads. Therefore the exit handler waits for
// running calls, which stop soon. Their threads, and threads that start a call later, then block
// here until the process exits and never return to Python.
class GilRelease {
public:
    GilRelease();
    ~GilRelease();
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

    // True if another thread is exiting the interpreter and waits for this call.
    static bool should_stop() noexcept;

private:
    PyThreadState* state_;
};

// Makes the interpreter wait for running calls at exit. Called once, by the module initialisation.
void register_exit_handler();

}  // namespace plait::python
