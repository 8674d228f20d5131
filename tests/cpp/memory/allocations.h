// Counts the allocations of the calling thread with operator new, and makes chosen ones fail.
#pragma once

#include <cstdint>

namespace plait {

uint64_t n_allocations();

// During its lifetime, `n` allocations of this thread succeed and the next throws std::bad_alloc.
class FailingAllocation {
public:
    explicit FailingAllocation(int64_t n);
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;
};

}  // namespace plait
