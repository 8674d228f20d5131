// The memory of the host that this process can still use.
#pragma once

#include <cstdint>
#include <string>

namespace plait {

// In bytes. 0: unknown.
struct HostMemory {
    uint64_t free = 0;            // without swapping
    uint64_t free_with_swap = 0;  // at least `free`
};

// Reads what the operating system reports as available, limited to the control group of this
// process (versions 1 and 2). Linux only; unknown elsewhere. `root`: prefix of all paths, for tests.
HostMemory host_memory(const std::string& root = "");

}  // namespace plait
