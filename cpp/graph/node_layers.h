// Which layer of its model each node belongs to.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace plait {

// By node: its layer, or `n_layers` for nodes after the last layer. A node without a name belongs to
// the layer of the next node that has one, so nodes before the first layer belong to it.
std::vector<size_t> node_layers(const Graph& graph, size_t n_layers);

}  // namespace plait
