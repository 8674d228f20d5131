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

PLAIT_INLINE void expand(const BlockIQ2_XS& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 16; ++g) {
        const int scale4 = block.scales[g / 2] >> (4 * (g % 2)) & 15;
        scales[g] = scale * (0.5f + static_cast<float>(scale4)) * 0.25f;
    }
    for (int g = 0; g < 8; ++g) {
        uint64_t four;
        __builtin_memcpy(&four, block.numbers + 4 * g, 8);
        const auto number = [&](int i) { return static_cast<int>(four >> (16 * i) & 511); };
        uint32_t signs = 0;
        for (int i = 0; i < 4; ++i)
            signs |= static_cast<uint32_t>(four >> (16 * i + 9) & 127) << (7 * i);
        put_signed(kGridIQ2_XS[number(0)], kGridIQ2_XS[number(1)], kGridIQ2_XS[number(2)],
                   kGridIQ2_XS[number(3)], even_signs(signs), codes + 32 * g);
    }
}

}  // namespace plait
