// Transposition of per-channel parameters, which files store as [channels, k].
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// to[j, c] = factor * from[c, j] for c < n. Rows of `to` are `stride` floats apart: a whole number
// of registers, and at least n. The remainder of the last register is zero.
PLAIT_INLINE void transpose_channels(const float* from, int64_t n, int64_t k, float factor,
                                     float* to, int64_t stride) {
    constexpr int64_t kLanes = F32::kLanes;
    for (int64_t c = 0; c < n; c += kLanes) {
        for (int64_t j = 0; j < k; j += kLanes) {
            const int64_t rows = k - j < kLanes ? k - j : kLanes;
            F32 square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i)
                square[i] = c + i < n ? F32::load(from + (c + i) * k + j, rows) : F32::zero();
            transpose(square);
            for (int64_t i = 0; i < rows; ++i)
                (F32::set(factor) * square[i]).store(to + (j + i) * stride + c);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
