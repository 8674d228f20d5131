// The Hadamard transform of heads, which quantised caches store.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

// Max elements of a block: those of a quantisation block. Larger ones would mix blocks that have
// scales of their own, and would not lower the error of a single large channel.
constexpr int kMaxHadamard = 32;
constexpr int kMinHadamard = 16;  // smaller blocks are not worth a transform

// Multiplies each `block` consecutive elements of x by the orthonormal Walsh-Hadamard matrix, in
// place: element (i, j) of the matrix is (-1)^popcount(i & j) / sqrt(block). The matrix is its own
// inverse. `block` is a power of two that divides n.
PLAIT_INLINE void hadamard(float* x, int64_t n, int64_t block) {
    const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(block));
    for (int64_t stride = 1; stride < block; stride *= 2)
        for (int64_t begin = 0; begin < n; begin += 2 * stride)
            for (int64_t i = begin; i < begin + stride; ++i) {
                const float a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
    for (int64_t i = 0; i < n; ++i) x[i] *= norm;
}

}  // namespace plait
