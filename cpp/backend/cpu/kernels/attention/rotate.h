// Rotation of one head by angles with the given cosines and sines. arXiv:2104.09864
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// Pairs (i, i + half). y may be x.
PLAIT_INLINE void rotate_halves(const float* x, const float* cosines, const float* sines, float* y,
                                int64_t half) {
    for (int64_t i = 0; i < half; i += F32::kLanes) {
        const int64_t n = half - i;
        if (n >= F32::kLanes) {
            const F32 a = F32::load(x + i), b = F32::load(x + half + i);
            const F32 c = F32::load(cosines + i), s = F32::load(sines + i);
            (a * c - b * s).store(y + i);
            (a * s + b * c).store(y + half + i);
        } else {
            const F32 a = F32::load(x + i, n), b = F32::load(x + half + i, n);
            const F32 c = F32::load(cosines + i, n), s = F32::load(sines + i, n);
            (a * c - b * s).store(y + i, n);
            (a * s + b * c).store(y + half + i, n);
        }
    }
}

// Pairs (2 i, 2 i + 1). y may be x: a chunk is read completely before it is written. The compiler
// keeps the arrays in registers.
PLAIT_INLINE void rotate_pairs(const float* x, const float* cosines, const float* sines, float* y,
                               int64_t half) {
    constexpr int64_t kChunk = 16;
    int64_t i = 0;
    for (; i + kChunk <= half; i += kChunk) {
        float from[2 * kChunk], to[2 * kChunk];
        memcpy(from, x + 2 * i, sizeof from);
        for (int64_t j = 0; j < kChunk; ++j) {
            const float a = from[2 * j], b = from[2 * j + 1];
            to[2 * j] = a * cosines[i + j] - b * sines[i + j];
            to[2 * j + 1] = a * sines[i + j] + b * cosines[i + j];
        }
        memcpy(y + 2 * i, to, sizeof to);
    }
    for (; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosines[i] - b * sines[i];
        y[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
}

}  // namespace plait::cpu::PLAIT_ISA
