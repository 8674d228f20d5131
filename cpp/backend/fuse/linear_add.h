// linear(x) + residual as one operation, for any device: the same bits, and one pass over y less.
#pragma once

#include "graph/graph.h"

namespace plait {

// To nodes of that device; what is an output of the graph is not absorbed.
void fuse_linear_add(Graph& graph, uint8_t device);

}  // namespace plait
