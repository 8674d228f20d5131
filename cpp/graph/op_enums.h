// The choices that parameterise ops, and what axis 0 of a value counts. Kernels of every
// instruction set include this header, so it uses no standard library.
#pragma once

#include <stdint.h>

namespace plait {

// What axis 0 of a value counts. The shape holds the plan's capacity; a run computes only the rows
// that its step has.
enum class Extent : uint8_t { fixed, tokens, outputs, moves };

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

// What is added to a score for the distance between query and key.
// alibi adds -slope_h * (position - key position), arXiv:2108.12409: with m = 2^floor(log2 h),
// slope_h = 2^(-max_bias (h+1) / m) for h < m, else 2^(-max_bias (2 (h-m) + 1) / (2 m)).
// buckets adds bias[bucket(key position - position), h], arXiv:1910.10683.
enum class PositionBias : uint8_t { none, alibi, buckets };

}  // namespace plait
