// Q8_0: 32 values as 8-bit integers with one scale. 8.5 bits per value.
//   value[i] = scale * quants[i]
// Layout: block_q8_0 in ggml-common.h; encoder: quantize_row_q8_0_ref in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ8_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    int8_t quants[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

PLAIT_INLINE void decode(const BlockQ8_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.quants[i]) * scale;
}

PLAIT_INLINE void encode(const float* values, BlockQ8_0& block) {
    const float scale = magnitude(extreme(values, 32)) / 127;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    for (int i = 0; i < 32; ++i) block.quants[i] = round_to_i8(values[i] * inverse);
}

}  // namespace plait
