// Rotation of one head by angles with the given cosines and sines, arXiv:2104.09864, and by a
// Hadamard matrix, arXiv:2404.00456.
#pragma once

#include "backend/cpu/simd/simd.h"
#include "tensor/blocks/hadamard.h"

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

// Multiplies each `block` elements of x by the orthonormal Hadamard matrix, in place. `block` is a
// power of two from 16 to 32 that divides n. Computes the same sums as plait::hadamard() of
// tensor/blocks/hadamard.h, so all instruction sets give the same bits.
PLAIT_INLINE void transform_blocks(float* x, int64_t n, int64_t block) {
    typedef float Eight __attribute__((vector_size(32)));
    constexpr int64_t kLanes = 8;
    const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(block));
    const Eight scale = {norm, norm, norm, norm, norm, norm, norm, norm};
    const Eight odd = {1, -1, 1, -1, 1, -1, 1, -1};
    const Eight pairs = {1, 1, -1, -1, 1, 1, -1, -1};
    const Eight fours = {1, 1, 1, 1, -1, -1, -1, -1};
    Eight v[kMaxHadamard / kLanes];
    for (int64_t at = 0; at < n; at += block) {
        const int64_t registers = block / kLanes;
        memcpy(v, x + at, static_cast<size_t>(block) * sizeof(float));
        for (int64_t i = 0; i < registers; ++i) {
            v[i] = __builtin_shufflevector(v[i], v[i], 1, 0, 3, 2, 5, 4, 7, 6) + v[i] * odd;
            v[i] = __builtin_shufflevector(v[i], v[i], 2, 3, 0, 1, 6, 7, 4, 5) + v[i] * pairs;
            v[i] = __builtin_shufflevector(v[i], v[i], 4, 5, 6, 7, 0, 1, 2, 3) + v[i] * fours;
        }
        for (int64_t stride = 1; stride < registers; stride *= 2)
            for (int64_t begin = 0; begin < registers; begin += 2 * stride)
                for (int64_t i = begin; i < begin + stride; ++i) {
                    const Eight a = v[i], b = v[i + stride];
                    v[i] = a + b;
                    v[i + stride] = a - b;
                }
        for (int64_t i = 0; i < registers; ++i) v[i] *= scale;
        memcpy(x + at, v, static_cast<size_t>(block) * sizeof(float));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
