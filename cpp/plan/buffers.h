// Where each value of a graph lives: lifetimes to offsets in one arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "graph/graph.h"
#include "plan/input_layout.h"

namespace plait {

struct Buffers {
    std::vector<Place> places;  // by node
    uint64_t arena_bytes = 0;
};

// Values that are alive in the same stage never overlap. Outputs live in the caller's buffers;
// captured values live until the run ends.
Buffers place_values(const Graph& graph, std::span<const uint32_t> stages,
                     const InputLayout& inputs);

}  // namespace plait
