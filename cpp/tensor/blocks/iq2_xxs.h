// IQ2_XXS: 256 values in 8 groups of 32, a 4-bit scale for each, four numbers of a lattice of eight
// values, and their signs. 2.06 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
// Layout: block_iq2_xxs in ggml-common.h; decoder: dequantize_row_iq2_xxs in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ2_XXS {
    static constexpr int kElements = 256;
    struct [[gnu::packed]] Group {
        uint8_t numbers[4];
        uint32_t signs;  // 7 bits of each number, then the scale
    };
    uint16_t scale;  // f16
    Group groups[8];
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

PLAIT_INLINE void expand(const BlockIQ2_XXS& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = block.groups[g].signs;
        scales[2 * g] = scales[2 * g + 1] =
            scale * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
        const uint8_t* n = block.groups[g].numbers;
        put_signed(kGridIQ2_XXS[n[0]], kGridIQ2_XXS[n[1]], kGridIQ2_XXS[n[2]], kGridIQ2_XXS[n[3]],
                   even_signs(signs), codes + 32 * g);
    }
}

}  // namespace plait
