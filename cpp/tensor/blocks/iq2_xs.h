// IQ2_XS: 256 values in 16 groups of 16, a 4-bit scale for each, two numbers of a lattice of eight
// values, and their signs. 2.31 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
// Layout: block_iq2_xs in ggml-common.h; decoder: dequantize_row_iq2_xs in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ2_XS {
    static constexpr int kElements = 256;
    uint16_t scale;        // f16
    uint16_t numbers[32];  // 9 bits, then 7 of signs
    uint8_t scales[8];     // nibbles
};
static_assert(sizeof(BlockIQ2_XS) == 74);

PLAIT_INLINE void expand(const BlockIQ2_XS& block, int8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 16; ++g) {
        const int scale4 = block.scales[g / 2] >> (4 * (g % 2)) & 15;
        scales[g] = scale * (0.5f + static_cast<float>(scale4)) * 0.25f;
    }
    for (int i = 0; i < 32; ++i) {
        const uint32_t number = block.numbers[i];
        put_signed(kGridIQ2_XS[number & 511], even_signs(number >> 9), codes + 8 * i);
    }
}

}  // namespace plait
