// Host memory for weights, caches and arenas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/buffer.h"

namespace plait::cpu {

// Zeroed, 4096-byte aligned, on huge pages where the system has them and the size is worth it.
// Throws BackendError naming the bytes.
std::unique_ptr<Buffer> allocate_host(uint64_t bytes);

// Memory for many things that live as long as the pool does: on huge pages, however small each of
// them is. What is never touched takes address space alone.
class HostPool {
public:
    // Zeroed, 4096-byte aligned. Throws as allocate_host does.
    std::byte* allocate(uint64_t bytes);

private:
    std::vector<std::unique_ptr<Buffer>> slabs_;
    uint64_t used_ = 0;  // of the last
};

}  // namespace plait::cpu
