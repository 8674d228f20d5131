// Where each value of a graph lives: lifetimes to offsets in one arena.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "graph/graph.h"
#include "plan/input_layout.h"

namespace plait {

struct Buffers {
    std::vector<Place> places;  // by node
    uint64_t arena_bytes = 0;
};

// Values that are alive at the same time never overlap. Outputs live in the caller's buffers.
Buffers place_values(const Graph& graph, const InputLayout& inputs);

}  // namespace plait
