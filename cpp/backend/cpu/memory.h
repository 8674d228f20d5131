// Host memory for weights, caches and arenas.
#pragma once

#include <cstdint>
#include <memory>

#include "tensor/buffer.h"

namespace plait::cpu {

// Zeroed, 4096-byte aligned, on huge pages where the system has them and the size is worth it.
// Throws BackendError naming the bytes.
std::unique_ptr<Buffer> allocate_host(uint64_t bytes);

}  // namespace plait::cpu
