// Quantisation of one block or row. Shared by the kernels that quantise what they compute.
#pragma once

#include "backend/cpu/kernels/products/quantize.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kRegistersOf32 = 32 / F32::kLanes;

PLAIT_INLINE void quantize_block(const F32 (&x)[kRegistersOf32], int8_t* codes, float* scale,
                                 int16_t* sums) {
    F32 largest = abs(x[0]);
    for (int i = 1; i < kRegistersOf32; ++i) largest = larger_bits(largest, abs(x[i]));
    const uint32_t bits = reduce_larger_bits(largest);
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    const bool finite = bits < 0x7f800000;
    // Below 1e-30, 127 / magnitude could overflow; such values count as zero.
    if (!finite || magnitude < 1e-30f) {
        memset(codes, 0, 32);
        *scale = finite ? 0.0f : __builtin_nanf("");
        sums[0] = sums[1] = 0;
        return;
    }
    const F32 inverse = F32::set(127.0f / magnitude);
    F32 scaled[kRegistersOf32];
    for (int i = 0; i < kRegistersOf32; ++i) scaled[i] = x[i] * inverse;
    *scale = magnitude / 127.0f;
    store_codes(scaled, codes, sums);
}

PLAIT_INLINE void quantize_row(const float* x, const QuantizedRow& y, int64_t n) {
    for (int64_t b = 0; b < n / 32; ++b) {
        F32 v[kRegistersOf32];
        for (int i = 0; i < kRegistersOf32; ++i) v[i] = F32::load(x + 32 * b + i * F32::kLanes);
        quantize_block(v, y.block_codes(b), y.block_scale(b), y.block_sums(b));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
