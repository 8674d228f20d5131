// Rewrites that insert nodes after values of a graph.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace plait {

// Returns the value that replaces node `old` in all nodes after it, given the node's copy in the new
// graph: the copy itself, or a value computed from it. The replacement gets the node's name.
using Follow = std::function<Value(NodeId old, Value copy)>;

void rewrite(Graph& graph, const Follow& follow);

}  // namespace plait
