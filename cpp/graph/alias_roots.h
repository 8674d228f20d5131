// Whose bytes a node's result is.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace plait {

// For every node, the one whose bytes its result is, through aliases; most are their own.
std::vector<NodeId> alias_roots(const Graph& graph);

}  // namespace plait
