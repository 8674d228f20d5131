// IQ1_M: 256 values in 16 groups of 16, a 3-bit scale for each, two numbers of a lattice of eight
// values -1, 0 and 1 with a shift each. 1.75 bits per value.
//   value = scale * (2 * scale3 + 1) * (lattice +- 1/8), here in eighths
// Layout: block_iq1_m in ggml-common.h; decoder: dequantize_row_iq1_m in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/iq1_s.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ1_M {
    static constexpr int kElements = 256;
    uint8_t numbers[32];
    uint8_t high[16];    // nibbles: bits 8 to 10 of a number, and whether the shift is down
    uint16_t scales[4];  // four of 3 bits each, then a nibble of the f16 scale, the lowest first
};
static_assert(sizeof(BlockIQ1_M) == 56);

PLAIT_INLINE void expand(const BlockIQ1_M& block, uint8_t* codes, float* scales) {
    int half = 0;
    for (int i = 0; i < 4; ++i) half |= block.scales[i] >> 12 << (4 * i);
    const float scale = f16_to_f32(static_cast<uint16_t>(half));
    for (int g = 0; g < 16; ++g) {
        const int scale3 = block.scales[g / 4] >> (3 * (g % 4)) & 7;
        scales[g] = scale * static_cast<float>(2 * scale3 + 1) * 0.125f;
        for (int i = 0; i < 2; ++i) {
            const int high = block.high[g] >> (4 * i);
            put_shifted(block.numbers[2 * g + i] | (high & 7) << 8, (high & 8) != 0,
                        codes + 16 * g + 8 * i);
        }
    }
}

}  // namespace plait
