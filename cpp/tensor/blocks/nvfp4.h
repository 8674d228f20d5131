// NVFP4: 64 values as 4-bit floats (E2M1) in 4 groups of 16 with an 8-bit float (E4M3, its sign
// unused) as scale. 4.5 bits per value.
//   value = e4m3(scale) * e2m1(nibble)      byte 8 g + j holds values 16 g + j (low) and + 8 (high)
// Layout: block_nvfp4 in ggml-common.h; decoder: dequantize_row_nvfp4 in ggml-quants.c (ggml), which
// takes the scale that is not a number as 0.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/blocks/mxfp4.h"

namespace plait {

struct [[gnu::packed]] BlockNVFP4 {
    static constexpr int kElements = 64;
    uint8_t scales[4];
    uint8_t nibbles[32];
};
static_assert(sizeof(BlockNVFP4) == 36);

// Half of an E4M3 number, for levels that are doubled.
PLAIT_INLINE float half_e4m3(uint8_t bits) {
    if (bits == 0x7f) return 0;
    const uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 0) return static_cast<float>(fraction) * 0x1p-10f;
    return __builtin_bit_cast(float, (exponent + 119) << 23 | fraction << 20);
}

PLAIT_INLINE void expand(const BlockNVFP4& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 4; ++g) {
        scales[g] = half_e4m3(block.scales[g]);
        for (int j = 0; j < 8; ++j) {
            const uint8_t both = block.nibbles[8 * g + j];
            codes[16 * g + j] = static_cast<uint8_t>(kExpandedOffset + kE2m1Doubled[both & 15]);
            codes[16 * g + j + 8] = static_cast<uint8_t>(kExpandedOffset + kE2m1Doubled[both >> 4]);
        }
    }
}

}  // namespace plait
