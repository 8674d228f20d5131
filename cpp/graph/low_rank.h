// Low-rank adapters: Hu et al. 2021, arXiv:2106.09685.
//
//   y = W x + sum over adapters of scale * B (A x)        A [r, in], B [out, r]
//
// Matrices of experts and of heads alike; for a table of tokens, y = W[t] + scale * B A[t].
#pragma once

#include <span>

#include "graph/graph.h"

namespace plait {

// The matrices that one adapter adds to one weight.
struct LowRank {
    WeightId base = 0;
    Weight a;            // [r, in] or [e, r, in]; for a table [vocab, r]
    Weight b;            // [out, r] or [e, out, r]
    uint16_t scale = 0;  // index of its scale: InputId{adapter_scale, scale}
};

// Adds the adapters to each op that multiplies by their weight or looks up rows of it.
void add_low_rank(Graph& graph, std::span<const LowRank> deltas);

// The weights that the graph reads only as operands that adapters can change.
std::vector<WeightId> adaptable_weights(const Graph& graph);

}  // namespace plait
