// Enumerations used as parameters of ops, and the meaning of axis 0 of a value. Kernels of every
// instruction set include this header, so it uses no standard library.
#pragma once

#include <stdint.h>

namespace plait {

// The unit of axis 0 of a value. The shape has the capacity of the plan; a run computes only as
// many rows as its step has.
enum class Extent : uint8_t { fixed, tokens, outputs, moves };

// How an edit combines a row of a value with a row that the caller gives: x + row, row, x * row.
enum class RowChange : uint8_t { add, replace, scale };

enum class Activation : uint8_t {
    silu,
    gelu,
    gelu_tanh,
    relu,
    relu_squared,
    sigmoid,
    tanh,
    softplus,
    exp
};

// How expert scores become weights: a softmax over all experts, a sigmoid of each, or a softmax
// over the chosen ones.
enum class Gating : uint8_t { softmax, sigmoid, softmax_chosen };

// The bias that is added to a score, depending on the distance between query and key. alibi adds
// -slope_h * (position - key position), arXiv:2108.12409: with m = 2^floor(log2(number of heads)),
// slope_h = 2^(-max_bias (h+1) / m) for h < m, else 2^(-max_bias (2 (h-m) + 1) / (2 m)). buckets adds
// bias[bucket(key position - position), h], arXiv:1910.10683.
enum class PositionBias : uint8_t { none, alibi, buckets };

}  // namespace plait
