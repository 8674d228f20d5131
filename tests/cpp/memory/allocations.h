// How many times this process asked for memory with operator new, for tests of what allocates nothing.
#pragma once

#include <cstdint>

namespace plait {

// Of the calling thread.
uint64_t n_allocations();

}  // namespace plait
