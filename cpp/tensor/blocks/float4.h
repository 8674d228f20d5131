// Floats of 4 bits (E2M1): MXFP4, NVFP4.
// Layouts: block_mxfp4 and block_nvfp4 in ggml-common.h (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"

namespace plait {

// Twice the value of each E2M1 code, an integer.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

// MXFP4: 32 values as 4-bit floats (E2M1) with one power-of-two scale (E8M0). 4.25 bits per value.
//   value[i] = 2^(exponent - 127) * e2m1(nibble[i])
// Byte j holds values j (low nibble) and j + 16 (high nibble).
// Format: OCP Microscaling Formats (MX) Specification 1.0. Layout: block_mxfp4 in ggml-common.h;
// decoder: dequantize_row_mxfp4 in ggml-quants.c (ggml), which reads exponent 255 as 2^128, not as
// NaN.
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

// NVFP4: 64 values as 4-bit floats (E2M1) in 4 groups of 16 with an 8-bit float (E4M3, its sign
// unused) as scale. 4.5 bits per value.
//   value = e4m3(scale) * e2m1(nibble)
// Byte 8 g + j holds values 16 g + j (low nibble) and 16 g + j + 8 (high nibble).
// Layout: block_nvfp4 in ggml-common.h; decoder: dequantize_row_nvfp4 in ggml-quants.c (ggml),
// which reads a NaN scale as 0.
struct [[gnu::packed]] BlockNVFP4 {
    static constexpr int kElements = 64;
    uint8_t scales[4];
    uint8_t nibbles[32];
};
static_assert(sizeof(BlockNVFP4) == 36);

// Half of an E4M3 number, because kE2m1Doubled holds doubled values.
PLAIT_INLINE constexpr float half_e4m3(uint8_t bits) {
    if (bits == 0x7f) return 0;
    const uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
    if (exponent == 0) return static_cast<float>(fraction) * 0x1p-10f;
    return __builtin_bit_cast(float, (exponent + 119) << 23 | fraction << 20);
}

PLAIT_INLINE void expand(const BlockNVFP4& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 4; ++g) {
        scales[g] = half_e4m3(block.scales[g]);
        for (int j = 0; j < 8; ++j) {
            const int both = block.nibbles[8 * g + j];
            codes[16 * g + j] = static_cast<uint8_t>(kExpandedOffset + kE2m1Doubled[both & 15]);
            codes[16 * g + j + 8] = static_cast<uint8_t>(kExpandedOffset + kE2m1Doubled[both >> 4]);
        }
    }
}

}  // namespace plait
