// The rounding of quantize_rows, for kernels that make what is rounded.
#pragma once

#include "backend/cpu/kernels/quantize_rows.h"
#include "backend/cpu/simd/int8.h"

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE void quantize_block(const float* x, int8_t* codes, float* scale, int16_t* sums) {
    constexpr int kRegistersOf32 = 32 / F32::kLanes;
    F32 v[kRegistersOf32];
    F32 largest = F32::zero(), finite = F32::zero();
    for (int i = 0; i < kRegistersOf32; ++i) {
        v[i] = F32::load(x + i * F32::kLanes);
        largest = max(largest, abs(v[i]));
        finite = fma(v[i], F32::zero(), finite);
    }
    const float most = reduce_max(largest);
    const float zero = sum(finite);  // NaN where a value is not finite
    // Below 1e-30, 127 / most could overflow; such values count as zero.
    if (!(zero == 0.0f) || most < 1e-30f) {
        memset(codes, 0, 32);
        *scale = zero;
        sums[0] = sums[1] = 0;
        return;
    }
    const F32 inverse = F32::set(127.0f / most);
    for (int i = 0; i < kRegistersOf32; ++i) store_codes(v[i] * inverse, codes + i * F32::kLanes);
    *scale = most / 127.0f;
    sum_codes(codes, sums);
}

PLAIT_INLINE void quantize_row(const float* x, const QuantizedRow& y, int64_t n) {
    for (int64_t b = 0; b < n / 32; ++b)
        quantize_block(x + 32 * b, y.block_codes(b), y.block_scale(b), y.block_sums(b));
}

}  // namespace plait::cpu::PLAIT_ISA
