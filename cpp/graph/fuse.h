// Fusions that any backend may use when it lowers a graph.
#pragma once

#include "graph/graph.h"

namespace plait {

// Replaces x + linear(y) by LinearAdd if nothing else reads the product. Each result keeps its bits;
// the sum costs one pass over the rows less.
void fuse_linear_add(Graph& graph);

// By node: how many operands and outputs refer to it.
std::vector<int> count_uses(const Graph& graph);

}  // namespace plait
