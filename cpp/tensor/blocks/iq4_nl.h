// IQ4_NL: 32 values as indices into 16 fixed, unevenly spaced levels, with one scale. 4.5 bits per
// value.
//   value[i] = scale * kIq4Levels[nibble[i]]      byte j holds values j (low) and j + 16 (high)
// Layout and levels: block_iq4_nl and kvalues_iq4nl in ggml-common.h; encoder:
// quantize_row_iq4_nl_ref in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

struct [[gnu::packed]] BlockIQ4_NL {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

PLAIT_INLINE void decode(const BlockIQ4_NL& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 16; ++j) {
        out[j] = scale * static_cast<float>(kIq4Levels[block.nibbles[j] & 15]);
        out[j + 16] = scale * static_cast<float>(kIq4Levels[block.nibbles[j] >> 4]);
    }
}

// Index of the level nearest to `value`, the higher of two equally near; NaN gives 0.
PLAIT_INLINE int nearest_iq4_level(float value) {
    int index = 0;
    for (int i = 1; i < 16; ++i) {
        index += 2 * value >= static_cast<float>(kIq4Levels[i - 1] + kIq4Levels[i]);
    }
    return index;
}

// The value of largest magnitude picks the indices by standing at the first level; the scale is then
// the one that minimises the squared error of these indices, weighted by the squared values.
PLAIT_INLINE void encode(const float* values, BlockIQ4_NL& block) {
    constexpr float kSmallest = 1e-15f;  // ggml's GROUP_MAX_EPS: below it the block is zero
    const float largest = extreme(values, 32);
    const bool zero = magnitude(largest) < kSmallest;
    const float inverse = zero ? 0.0f : 1.0f / (largest / static_cast<float>(kIq4Levels[0]));
    float product = 0, square = 0;
    for (int i = 0; i < 32; ++i) {
        const int index = zero ? 0 : nearest_iq4_level(inverse * values[i]);
        const float level = static_cast<float>(kIq4Levels[index]);
        const float weight = values[i] * values[i];
        product += weight * level * values[i];
        square += weight * level * level;
        uint8_t& byte = block.nibbles[i % 16];
        byte = static_cast<uint8_t>(i < 16 ? index : byte | index << 4);
    }
    block.scale = f32_to_f16(!zero && square > 0 ? product / square : 0.0f);
}

}  // namespace plait
