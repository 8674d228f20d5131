// Q3_K: 256 values as 3-bit integers in 16 groups of 16, each with a 6-bit scale. 3.4375 bits per
// value.
//   value[16 g + i] = scale * (scale6(g) - 32) * ((low2 | high << 2) - 4)
// quants holds two halves of 128 values in 32 bytes each: value 32 k + i of a half is bits
// [2 k, 2 k + 2) of byte i. Bit k of high[i] is the third bit of value 32 k + i of the block.
// Layout: block_q3_K in ggml-common.h; decoder: dequantize_row_q3_K in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ3_K {
    static constexpr int kElements = 256;
    uint8_t high[32];
    uint8_t quants[64];
    uint8_t scales[12];  // 16 of 6 bits, see scale6
    uint16_t scale;      // f16
};
static_assert(sizeof(BlockQ3_K) == 110);

// The low four bits of scales 0 to 7 and 8 to 15 are the nibbles of bytes 0 to 7; the high two bits
// of scale g are bits [2 (g / 4), 2 (g / 4) + 2) of byte 8 + g % 4.
PLAIT_INLINE int scale6(const BlockQ3_K& block, int group) {
    const int low = group < 8 ? block.scales[group] & 15 : block.scales[group - 8] >> 4;
    const int high = block.scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    return low | high << 4;
}

PLAIT_INLINE void decode(const BlockQ3_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int group = 0; group < 16; ++group) {
        const float step = scale * static_cast<float>(scale6(block, group) - 32);
        const uint8_t* quants = block.quants + 32 * (group / 8) + 16 * (group % 2);
        const uint8_t* high = block.high + 16 * (group % 2);
        const int shift = 2 * (group / 2 % 4);
        for (int i = 0; i < 16; ++i) {
            const int quant = (quants[i] >> shift & 3) | (high[i] >> (group / 2) & 1) << 2;
            out[16 * group + i] = step * static_cast<float>(quant - 4);
        }
    }
}

}  // namespace plait
