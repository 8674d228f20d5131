// Memory asked for with operator new: counted, for tests of what allocates nothing, and refused,
// for tests of what a lack of memory leaves behind. Both of the calling thread.
#pragma once

#include <cstdint>

namespace plait {

uint64_t n_allocations();

// While one lives, the allocation after the next `n` throws std::bad_alloc.
class FailingAllocation {
public:
    explicit FailingAllocation(int64_t n);
    ~FailingAllocation();
    FailingAllocation(const FailingAllocation&) = delete;
    FailingAllocation& operator=(const FailingAllocation&) = delete;
};

}  // namespace plait
