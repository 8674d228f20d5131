// Facts about the nodes of a graph.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace plait {

// Returns for each node how many operands and outputs refer to it.
std::vector<int> count_uses(const Graph& graph);

// Returns for each node its root: the node whose bytes contain its result, through any number of
// aliases. Most nodes are their own root.
std::vector<NodeId> alias_roots(const Graph& graph);

// Returns the layer of each node, or `n_layers` for nodes after the last layer. A node without a
// name belongs to the layer of the next node that has one, so nodes before the first layer belong
// to it.
std::vector<size_t> node_layers(const Graph& graph, size_t n_layers);

}  // namespace plait
