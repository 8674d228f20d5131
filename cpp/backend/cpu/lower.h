// Rewrites a graph into the operations that the CPU has kernels for.
#pragma once

#include "graph/graph.h"

namespace plait::cpu {

// Products with block types take their rows through quantize_rows, one for each distinct x.
// Attention over a cache of many rows takes sums of the keys' splits, for threads to share.
// Nodes of other devices stay as they are.
void lower(Graph& graph, int threads, uint8_t device = 0);

}  // namespace plait::cpu
