// The default context length.
#pragma once

#include <cstdint>

#include "memory/memory.h"

namespace plait {

// Returns the training length (512 if the model has none), or the largest length, at least 1, whose cache
// takes at most half of the available memory.
int64_t fitting_n_ctx(const MemorySpecs& specs, const MemoryOptions& options, int64_t n_ctx_train);

// Returns the available memory in bytes according to the operating system; 0 if unknown.
uint64_t free_memory();

}  // namespace plait
