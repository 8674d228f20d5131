// Q5_0: 32 values as 5-bit integers with one scale. 5.5 bits per value.
//   value[i] = scale * ((nibble[i] | fifth[i] << 4) - 16)
//   byte j of nibbles holds values j (low) and j + 16 (high); bit i of fifth is that of value i
// Layout: block_q5_0 in ggml-common.h; encoder: quantize_row_q5_0_ref in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ5_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    uint32_t fifth;
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

PLAIT_INLINE void decode(const BlockQ5_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const uint32_t fifth = block.fifth;
    for (int j = 0; j < 16; ++j) {
        const int low = (block.nibbles[j] & 15) | static_cast<int>(fifth >> j & 1) << 4;
        const int high = (block.nibbles[j] >> 4) | static_cast<int>(fifth >> (j + 16) & 1) << 4;
        out[j] = static_cast<float>(low - 16) * scale;
        out[j + 16] = static_cast<float>(high - 16) * scale;
    }
}

// The value of largest magnitude becomes exactly -16 steps.
PLAIT_INLINE void encode(const float* values, BlockQ5_0& block) {
    const float scale = extreme(values, 32) / -16;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    uint32_t fifth = 0;
    for (int j = 0; j < 16; ++j) {
        const uint32_t low = truncate_to(values[j] * inverse + 16.5f, 31);
        const uint32_t high = truncate_to(values[j + 16] * inverse + 16.5f, 31);
        block.nibbles[j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    block.fifth = fifth;
}

}  // namespace plait
