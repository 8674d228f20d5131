// IQ1_S: 256 values in 8 groups of 32, a 3-bit scale and a shift for each, four numbers of a lattice
// of eight values -1, 0 and 1. 1.56 bits per value.
//   value = scale * (2 * scale3 + 1) * (lattice +- 1/8), here in eighths
// Layout: block_iq1_s in ggml-common.h; decoder: dequantize_row_iq1_s in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockIQ1_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t numbers[32];
    uint16_t high[8];  // bits 8 to 10 of four numbers, the scale, and whether the shift is down
};
static_assert(sizeof(BlockIQ1_S) == 50);

// Eight codes: values of the lattice in eighths, shifted by one of them.
PLAIT_INLINE void put_shifted(int number, bool down, uint8_t* to) {
    constexpr uint64_t kOnes = 0x0101010101010101;
    const uint64_t codes = kGridIQ1_S[number] + (down ? -kOnes : kOnes);
    __builtin_memcpy(to, &codes, 8);
}

PLAIT_INLINE void expand(const BlockIQ1_S& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const int high = block.high[g];
        scales[2 * g] = scales[2 * g + 1] =
            scale * static_cast<float>(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (int i = 0; i < 4; ++i)
            put_shifted(block.numbers[4 * g + i] | (high >> (3 * i) & 7) << 8, (high >> 15) != 0,
                        codes + 32 * g + 8 * i);
    }
}

}  // namespace plait
