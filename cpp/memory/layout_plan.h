// From what a model needs remembered to groups and storage.
#pragma once

#include "memory/layout.h"
#include "memory/memory.h"

namespace plait {

// Layers that see and ask for the same share a group, whatever their head counts and sizes.
// `options.n_cells` must be set.
MemoryLayout plan_layout(const MemorySpecs& specs, const MemoryOptions& options);

// Whether a group's rows are retired as its window moves on.
bool gives_rows_back(const Window& window, const MemoryOptions& options);

}  // namespace plait
