// How long a context may be when the caller leaves that open.
#pragma once

#include <cstdint>

#include "memory/memory.h"

namespace plait {

// The training length, or less where the cache would take over half of the memory that is free now.
// At least 1; 512 where the model states no training length.
int64_t fitting_n_ctx(const MemorySpecs& specs, const MemoryOptions& options, int64_t n_ctx_train);

// Bytes of memory that programs can still get, as the system says; 0 where it does not.
uint64_t free_memory();

}  // namespace plait
