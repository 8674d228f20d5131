// Host memory for weights, caches and arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/buffer.h"

namespace plait::cpu {

// Returns zeroed memory with 4096-byte alignment, on huge pages if the system has them and the size
// is at least one. Throws BackendError if there is not enough memory.
std::unique_ptr<Buffer> allocate_host(uint64_t bytes);

// Memory that lives as long as the pool. Small allocations share huge pages. Untouched memory only
// takes address space.
class HostPool {
public:
    // Zeroed, 4096-byte aligned. Throws as allocate_host does.
    std::byte* allocate(uint64_t bytes);

private:
    std::vector<std::unique_ptr<Buffer>> slabs_;
    uint64_t used_ = 0;  // bytes of the last slab
};

}  // namespace plait::cpu
