// Where each value of a graph is stored: lifetimes become offsets in one arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "plan/input_layout.h"

namespace plait {

struct Buffers {
    std::vector<Place> places;  // by node
    uint64_t arena_bytes = 0;
};

// Values that are alive in the same stage never overlap. GraphOutputs are stored in the caller's buffers.
// Captured values live until the run ends. `exchanged`: by node, the places of values that the graph
// sends or receives, nowhere for all others; may be empty.
Buffers place_values(const LoweredGraph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs, std::span<const Place> exchanged = {});

// By node, the last node that reads its bytes, through aliases; itself if there is none.
std::vector<NodeId> last_uses(const LoweredGraph& graph);

}  // namespace plait
