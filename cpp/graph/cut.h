// A graph cut into parts, each a graph of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace plait {

// `part_of`: by node, the part that computes it. Only the parts of kernel and host nodes count:
// sources and views are copied to each part that reads them.
//
// Where a part reads a value of another, the one gets a Send directly after the node that computes
// the value, the other a Receive of the same channel before the first node that reads it. Channels
// count from 0 over all parts. A value that changes a cache in place stays within its part
// (InternalError). An output is an output of the part that computes it.
std::vector<Graph> cut(const Graph& graph, std::span<const uint8_t> part_of, size_t n_parts);

}  // namespace plait
