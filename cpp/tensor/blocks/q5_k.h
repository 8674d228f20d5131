// Q5_K: 256 values as 5-bit integers in 8 groups of 32, each with a 6-bit scale and minimum.
// 5.5 bits per value.
//   value[32 g + i] = scale * scale6(g) * (nibble | fifth << 4) - minimum * minimum6(g)
// Bytes [32 p, 32 p + 32) of nibbles hold group 2 p (low) and group 2 p + 1 (high); bit g of fifth[i]
// is that of value 32 g + i.
// Layout: block_q5_K in ggml-common.h; decoder: dequantize_row_q5_K in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/scale_min.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ5_K {
    static constexpr int kElements = 256;
    uint16_t scale;      // f16
    uint16_t minimum;    // f16
    uint8_t scales[12];  // see scale_min
    uint8_t fifth[32];
    uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

PLAIT_INLINE void decode(const BlockQ5_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(block.scales, group);
        const float step = scale * static_cast<float>(packed.scale);
        const float base = minimum * static_cast<float>(packed.minimum);
        const uint8_t* nibbles = block.nibbles + 32 * (group / 2);
        const int shift = 4 * (group % 2);
        for (int i = 0; i < 32; ++i) {
            const int quant = (nibbles[i] >> shift & 15) | (block.fifth[i] >> group & 1) << 4;
            out[32 * group + i] = step * static_cast<float>(quant) - base;
        }
    }
}

}  // namespace plait
