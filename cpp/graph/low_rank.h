// Low-rank adapters: Hu et al. 2021, arXiv:2106.09685.
//
//   y = W x + sum over adapters of scale * B (A x)        A [r, in], B [out, r]
//
// The same for the matrices of experts and of heads; of a table of tokens, y = W[t] + scale * B A[t].
#pragma once

#include <span>

#include "graph/graph.h"

namespace plait {

// What one adapter adds to one weight.
struct LowRank {
    WeightId base = 0;
    Weight a;            // [r, in], [e, r, in]; of a table [vocab, r]
    Weight b;            // [out, r], [e, out, r]
    uint16_t scale = 0;  // of the set's scales: InputId{adapter_scale, scale}
};

// Adds them wherever the graph multiplies by their weight or looks rows of it up.
void add_low_rank(Graph& graph, std::span<const LowRank> deltas);

// The weights that the graph uses in such a way, and in no other.
std::vector<WeightId> adaptable_weights(const Graph& graph);

}  // namespace plait
