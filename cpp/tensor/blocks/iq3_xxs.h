// IQ3_XXS: 256 values in 8 groups of 32, a 4-bit scale for each, eight numbers of a lattice of four
// values, and the signs of each eight. 3.06 bits per value.
//   value = scale * (scale4 + 1/2) / 2 * (+-) lattice
// Layout: block_iq3_xxs in ggml-common.h; decoder: dequantize_row_iq3_xxs in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ3_XXS {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t numbers[64];
    uint32_t signs[8];  // 7 bits of each two numbers, then the group's scale
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

PLAIT_INLINE void expand(const BlockIQ3_XXS& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = block.signs[g];
        scales[2 * g] = scales[2 * g + 1] = scale * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
        const auto two = [&](int i) {
            const uint8_t* n = block.numbers + 8 * g + 2 * i;
            return kGridIQ3_XXS[n[0]] | uint64_t{kGridIQ3_XXS[n[1]]} << 32;
        };
        put_signed(two(0), two(1), two(2), two(3), even_signs(signs), codes + 32 * g);
    }
}

}  // namespace plait
