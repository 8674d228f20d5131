// Calls of the operating system that fail when a test says so. The definitions in failing_calls.cpp
// are found before those of the C library, and hand on every other call to them.
#pragma once

#include <climits>

namespace plait::test {

enum class Call { open, stat, fstat, pread, write, fsync, ftruncate, rename };

// While it lives, `call` fails with `error` (an errno) after `n_good` that did not, `n_times` in a
// row. Without an error it does nothing and returns 0: a file that ends.
class FailingCall {
public:
    explicit FailingCall(Call call, int error, int n_good = 0, int n_times = INT_MAX);
    ~FailingCall();
    FailingCall(const FailingCall&) = delete;
    FailingCall& operator=(const FailingCall&) = delete;
};

}  // namespace plait::test
