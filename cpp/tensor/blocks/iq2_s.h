// IQ2_S: 256 values in 16 groups of 16, a 4-bit scale for each, two numbers of a lattice of eight
// values, and their signs. 2.56 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
// Layout: block_iq2_s in ggml-common.h; decoder: dequantize_row_iq2_s in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ2_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t numbers[32];
    uint8_t signs[32];
    uint8_t high[8];    // bits 8 and 9 of four numbers each
    uint8_t scales[8];  // nibbles
};
static_assert(sizeof(BlockIQ2_S) == 82);

PLAIT_INLINE void expand(const BlockIQ2_S& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 16; ++g) {
        const int scale4 = block.scales[g / 2] >> (4 * (g % 2)) & 15;
        scales[g] = scale * (0.5f + static_cast<float>(scale4)) * 0.25f;
    }
    for (int g = 0; g < 8; ++g) {
        const auto number = [&](int i) {
            return block.numbers[4 * g + i] | (block.high[g] >> (2 * i) & 3) << 8;
        };
        uint32_t signs;
        __builtin_memcpy(&signs, block.signs + 4 * g, 4);
        put_signed(kGridIQ2_S[number(0)], kGridIQ2_S[number(1)], kGridIQ2_S[number(2)],
                   kGridIQ2_S[number(3)], signs, codes + 32 * g);
    }
}

}  // namespace plait
