// A graph cut into parts, each a graph of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace plait {

// Cuts the graph. `part_of` has the part of each kernel and host node; its entries for sources and
// views are ignored, because these are copied to each part that reads them.
//
// If a part reads a value that another part computes, the computing part gets a Send directly after
// the node, and the reading part a Receive of the same channel before the first node that reads the
// value. Channels count from 0 over all parts. An output belongs to the part that computes it.
// Throws InternalError if another part reads a value that changes a cache in place.
std::vector<Graph> cut(const Graph& graph, std::span<const uint8_t> part_of, size_t n_parts);

}  // namespace plait
