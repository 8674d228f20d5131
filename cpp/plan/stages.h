// Which nodes may run at the same time: consecutive ones of which none needs another.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace plait {

// By node, never falling. Nodes of one stage neither read what another of them writes nor write the
// same bytes: the projections of a layer's input, the rotation of queries and of keys.
std::vector<uint32_t> find_stages(const Graph& graph);

}  // namespace plait
