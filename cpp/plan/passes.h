// The passes of the compiler, in the order in which it runs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "backend/lowered_graph.h"
#include "graph/graph.h"

namespace plait {

// Moves select_rows ahead of row-wise ops, so that rows which are not selected are not computed.
// After a model's last attention only the output rows remain.
void select_early(Graph& graph);

// Removes every node that neither contributes to an output nor changes a cache.
void prune(Graph& graph);

// Returns the device that computes each node. A node runs on the device that holds the cache it
// accesses, otherwise on the device of its layer, or on the host if that device has no kernel for
// it. Throws UnsupportedError if no device has one. `storage_devices`: by index of ops::Storage.
// Only kernel and host nodes have a device.
std::vector<uint8_t> assign_devices(const Graph& graph, const DeviceSet& devices,
                                    std::span<const size_t> storage_devices);

// Returns the stage of each node; stages never decrease. A node neither reads nor overwrites what
// another node of its stage writes, so the nodes of a stage may run at the same time. The
// projections of a layer's input share a stage, as do the rotations of queries and keys.
std::vector<uint32_t> find_stages(const LoweredGraph& graph);

// Consecutive nodes of one graph. The host writes the results of its host nodes before the others
// run.
struct SegmentRange {
    size_t part;  // index of the graph
    NodeId begin, end;
};

// Returns the segments of several lowered graphs in the order of their execution. A segment ends
// before a host node, unless that is a Receive of a value that earlier segments have sent.
std::vector<SegmentRange> schedule(std::span<const LoweredGraph* const> graphs);

}  // namespace plait
