// Which nodes may run at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/lowered_graph.h"

namespace plait {

// By node, never falling. A node neither reads nor overwrites what another node of its stage writes.
// The projections of a layer's input share a stage, as do the rotations of queries and keys.
std::vector<uint32_t> find_stages(const LoweredGraph& graph);

}  // namespace plait
