// Q2_K: 256 values as 2-bit integers in 16 groups of 16, each with a 4-bit scale and minimum.
// 2.625 bits per value.
//   value[16 g + i] = scale * (scales[g] & 15) * q - minimum * (scales[g] >> 4)
// quants holds two halves of 128 values in 32 bytes each: value 32 k + i of a half is bits
// [2 k, 2 k + 2) of byte i.
// Layout: block_q2_K in ggml-common.h; decoder: dequantize_row_q2_K in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ2_K {
    static constexpr int kElements = 256;
    uint8_t scales[16];
    uint8_t quants[64];
    uint16_t scale;    // f16
    uint16_t minimum;  // f16
};
static_assert(sizeof(BlockQ2_K) == 84);

PLAIT_INLINE void decode(const BlockQ2_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 16; ++group) {
        const uint8_t packed = block.scales[group];
        const float step = scale * static_cast<float>(packed & 15);
        const float base = minimum * static_cast<float>(packed >> 4);
        const uint8_t* quants = block.quants + 32 * (group / 8) + 16 * (group % 2);
        const int shift = 2 * (group / 2 % 4);
        for (int i = 0; i < 16; ++i) {
            out[16 * group + i] = step * static_cast<float>(quants[i] >> shift & 3) - base;
        }
    }
}

}  // namespace plait
