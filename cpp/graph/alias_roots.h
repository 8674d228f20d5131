// The nodes whose bytes aliases have.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace plait {

// By node: the node whose bytes its result is, or a part of them, through any number of aliases. Most
// nodes are their own root.
std::vector<NodeId> alias_roots(const Graph& graph);

}  // namespace plait
