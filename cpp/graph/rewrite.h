// A graph made anew, with something put after values of it.
#pragma once

#include <functional>

#include "graph/graph.h"

namespace plait {

// What stands for node `old` of the graph from here on, given its copy in the new graph: the copy
// itself, or what was made of it, which then takes over its name.
using Follow = std::function<Value(NodeId old, Value copy)>;

void rewrite(Graph& graph, const Follow& follow);

}  // namespace plait
