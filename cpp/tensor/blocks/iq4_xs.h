// IQ4_XS: 256 values as indices into the levels of IQ4_NL, in 8 groups of 32 with a 6-bit scale each.
// 4.25 bits per value.
//   value[32 g + i] = scale * (scale6(g) - 32) * kIq4Levels[nibble]
// Bytes [16 g, 16 g + 16) of nibbles hold group g: byte j has values j (low) and j + 16 (high).
// Layout: block_iq4_xs in ggml-common.h; decoder: dequantize_row_iq4_xs in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/iq4_nl.h"
#include "tensor/half.h"

namespace plait {

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
