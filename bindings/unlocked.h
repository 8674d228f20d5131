// The GIL, put down for a while.
#pragma once

#include "module.h"

namespace plait::python {

// Other Python threads run while it lives. The interpreter may end meanwhile, and then frees what the
// call is working on (the frames of daemon threads, and every object they hold). So the end waits for
// the calls that are running, which stop soon; their threads, and those that call later, then wait
// here for the end of the process and never return to Python.
class Unlocked {
public:
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

    // True in a call that another thread, ending the interpreter, waits for.
    static bool should_stop() noexcept;

private:
    PyThreadState* state_;
};

// Makes the interpreter's end wait, as said above. Once, when the module is made.
void watch_for_the_end();

}  // namespace plait::python
