// The order in which the segments of several lowered graphs run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/lowered_graph.h"

namespace plait {

// Consecutive nodes of one graph. The host writes the results of its host nodes before the others run.
struct SegmentRange {
    size_t part;  // index of the graph
    NodeId begin, end;
};

// Segments in the order of their execution. A segment ends before a host node, unless that is a
// Receive of a value that earlier segments have sent.
std::vector<SegmentRange> schedule(std::span<const LoweredGraph* const> graphs);

}  // namespace plait
