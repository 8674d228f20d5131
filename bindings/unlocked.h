// The GIL, put down for a while.
#pragma once

#include <unistd.h>

#include "module.h"

namespace plait::python {

// Other Python threads run while it lives. When the interpreter ends meanwhile, Python (before 3.14)
// ends a thread that wants the GIL back by unwinding its stack, which no destructor survives: the
// thread then waits here for the end of the process instead.
class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) pause();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

}  // namespace plait::python
