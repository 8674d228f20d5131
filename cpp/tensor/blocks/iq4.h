// Indices of 4 bits into fixed, unevenly spaced levels: IQ4_NL, IQ4_XS.
// Layouts: block_iq4_nl and block_iq4_xs in ggml-common.h (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

// IQ4_NL: 32 values as indices into 16 fixed, unevenly spaced levels, with one scale. 4.5 bits per
// value.
//   value[i] = scale * kIq4Levels[nibble[i]]      byte j holds values j (low) and j + 16 (high)
// Layout and levels: block_iq4_nl and kvalues_iq4nl in ggml-common.h; encoder:
// quantize_row_iq4_nl_ref in ggml-quants.c (ggml).
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

// Returns the index of the nearest level, the higher one on a tie; NaN gives 0.
PLAIT_INLINE int nearest_iq4_level(float value) {
    int index = 0;
    for (int i = 1; i < 16; ++i) {
        index += 2 * value >= static_cast<float>(kIq4Levels[i - 1] + kIq4Levels[i]);
    }
    return index;
}

// Chooses the indices for the scale that maps the value with the largest magnitude to the first
// level, then computes the scale that minimises the squared error for these indices, weighted by
// the squared values.
PLAIT_INLINE void encode(const float* values, BlockIQ4_NL& block) {
    constexpr float kSmallest = 1e-15f;  // GROUP_MAX_EPS in ggml; a smaller block encodes to zeros
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

// IQ4_XS: 256 values as indices into the levels of IQ4_NL, in 8 groups of 32 with a 6-bit scale
// each. 4.25 bits per value.
//   value[32 g + i] = scale * (scale6(g) - 32) * kIq4Levels[nibble]
// Bytes [16 g, 16 g + 16) of nibbles hold group g: byte j has values j (low) and j + 16 (high).
// Layout: block_iq4_xs in ggml-common.h; decoder: dequantize_row_iq4_xs in ggml-quants.c (ggml).
struct [[gnu::packed]] BlockIQ4_XS {
    static constexpr int kElements = 256;
    uint16_t scale;         // f16
    uint16_t scales_high;   // bits [2 g, 2 g + 2): high bits of group g's scale
    uint8_t scales_low[4];  // nibble g: low bits of group g's scale
    uint8_t nibbles[128];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

PLAIT_INLINE int scale6(const BlockIQ4_XS& block, int group) {
    const int low = block.scales_low[group / 2] >> (4 * (group % 2)) & 15;
    return low | (block.scales_high >> (2 * group) & 3) << 4;
}

PLAIT_INLINE void decode(const BlockIQ4_XS& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int group = 0; group < 8; ++group) {
        const float step = scale * static_cast<float>(scale6(block, group) - 32);
        const uint8_t* nibbles = block.nibbles + 16 * group;
        for (int j = 0; j < 16; ++j) {
            out[32 * group + j] = step * static_cast<float>(kIq4Levels[nibbles[j] & 15]);
            out[32 * group + j + 16] = step * static_cast<float>(kIq4Levels[nibbles[j] >> 4]);
        }
    }
}

}  // namespace plait
