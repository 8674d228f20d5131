// Q4_0: 32 values as 4-bit integers with one scale. 4.5 bits per value.
//   value[i] = scale * (nibble[i] - 8)      byte j holds values j (low) and j + 16 (high)
// Layout: block_q4_0 in ggml-common.h; encoder: quantize_row_q4_0_ref in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ4_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

PLAIT_INLINE void decode(const BlockQ4_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>((block.nibbles[j] & 15) - 8) * scale;
        out[j + 16] = static_cast<float>((block.nibbles[j] >> 4) - 8) * scale;
    }
}

// The value of largest magnitude becomes exactly -8 steps.
PLAIT_INLINE void encode(const float* values, BlockQ4_0& block) {
    const float scale = extreme(values, 32) / -8;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    for (int j = 0; j < 16; ++j) {
        const int low = truncate_to(values[j] * inverse + 8.5f, 15);
        const int high = truncate_to(values[j + 16] * inverse + 8.5f, 15);
        block.nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
}

}  // namespace plait
