// IQ3_S: 256 values in 8 groups of 32, a 4-bit scale for each, eight numbers of a lattice of four
// values, and their signs. 3.44 bits per value.
//   value = scale * (2 * scale4 + 1) * (+-) lattice
// Layout: block_iq3_s in ggml-common.h; decoder: dequantize_row_iq3_s in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ3_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t numbers[64];
    uint8_t high[8];  // bit i of byte g: bit 8 of number 8 g + i
    uint8_t signs[32];
    uint8_t scales[4];  // nibbles
};
static_assert(sizeof(BlockIQ3_S) == 110);

PLAIT_INLINE void expand(const BlockIQ3_S& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const int scale4 = block.scales[g / 2] >> (4 * (g % 2)) & 15;
        scales[2 * g] = scales[2 * g + 1] = scale * static_cast<float>(2 * scale4 + 1);
        const auto two = [&](int i) {
            const uint8_t* n = block.numbers + 8 * g + 2 * i;
            const int high = block.high[g] >> (2 * i);
            return kGridIQ3_S[n[0] | (high & 1) << 8] | uint64_t{kGridIQ3_S[n[1] | (high & 2) << 7]}
                                                            << 32;
        };
        uint32_t signs;
        __builtin_memcpy(&signs, block.signs + 4 * g, 4);
        put_signed(two(0), two(1), two(2), two(3), signs, codes + 32 * g);
    }
}

}  // namespace plait
