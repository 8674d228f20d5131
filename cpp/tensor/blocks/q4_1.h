// Q4_1: 32 values as 4-bit integers with a scale and a minimum. 5 bits per value.
//   value[i] = scale * nibble[i] + minimum      byte j holds values j (low) and j + 16 (high)
// Layout: block_q4_1 in ggml-common.h; encoder: quantize_row_q4_1_ref in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ4_1 {
    static constexpr int kElements = 32;
    uint16_t scale;    // f16
    uint16_t minimum;  // f16
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

PLAIT_INLINE void decode(const BlockQ4_1& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(block.nibbles[j] & 15) * scale + minimum;
        out[j + 16] = static_cast<float>(block.nibbles[j] >> 4) * scale + minimum;
    }
}

PLAIT_INLINE void encode(const float* values, BlockQ4_1& block) {
    const Range range = range_of(values, 32);
    const float scale = (range.most - range.least) / 15;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    block.minimum = f32_to_f16(range.least);
    for (int j = 0; j < 16; ++j) {
        const int low = truncate_to((values[j] - range.least) * inverse + 0.5f, 15);
        const int high = truncate_to((values[j + 16] - range.least) * inverse + 0.5f, 15);
        block.nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
}

}  // namespace plait
