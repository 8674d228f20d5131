// MXFP4: 32 values as 4-bit floats (E2M1) with one power-of-two scale (E8M0). 4.25 bits per value.
//   value[i] = 2^(exponent - 127) * e2m1(nibble[i])      byte j holds values j (low) and j + 16 (high)
// Format: OCP Microscaling Formats (MX) Specification 1.0. Layout: block_mxfp4 in ggml-common.h;
// decoder: dequantize_row_mxfp4 in ggml-quants.c (ggml), which takes exponent 255 as 2^128, not NaN.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

// Twice the value of each E2M1 code, so that they are integers.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

struct [[gnu::packed]] BlockMXFP4 {
    static constexpr int kElements = 32;
    uint8_t exponent;
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockMXFP4) == 17);

// 2^(exponent - 128), half of the scale; exponents 0 and 1 give subnormals.
PLAIT_INLINE float half_scale(const BlockMXFP4& block) {
    const uint32_t exponent = block.exponent;
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
    return __builtin_bit_cast(float, bits);
}

PLAIT_INLINE void decode(const BlockMXFP4& block, float* out) {
    const float scale = half_scale(block);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(kE2m1Doubled[block.nibbles[j] & 15]) * scale;
        out[j + 16] = static_cast<float>(kE2m1Doubled[block.nibbles[j] >> 4]) * scale;
    }
}

}  // namespace plait
