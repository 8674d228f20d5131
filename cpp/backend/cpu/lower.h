// Rewrites a graph into the operations that the CPU has kernels for.
#pragma once

#include "graph/graph.h"

namespace plait::cpu {

// Products with block types take their rows through quantize_rows, one for each distinct x.
void lower(Graph& graph);

}  // namespace plait::cpu
