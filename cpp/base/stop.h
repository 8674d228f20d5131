// Lets another thread stop a long operation, such as loading weights.
#pragma once

#include <atomic>

namespace plait {

// While it exists, check_stop() on the thread that created it throws once `stop` is set.
class StopScope {
public:
    explicit StopScope(const std::atomic<bool>& stop);
    ~StopScope();
    StopScope(const StopScope&) = delete;
    StopScope& operator=(const StopScope&) = delete;

private:
    const std::atomic<bool>* outer_;
};

// Throws Interrupted if the `stop` of a StopScope of this thread is set. Call it about once per
// megabyte of work.
void check_stop();

}  // namespace plait
