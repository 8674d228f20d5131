// Values from a lattice: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S. An index selects a
// point of eight or four values from a table (tensor/blocks/grids.h). Layouts: block_iq1_s etc. in
// ggml-common.h; decoders: dequantize_row_iq1_s etc. in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

// IQ1_S: 256 values in 8 groups of 32, a 3-bit scale and a shift for each, four points of a lattice
// of eight values -1, 0 and 1. 1.56 bits per value.
//   value = scale * (2 * scale3 + 1) * (lattice +- 1/8), here in eighths
struct [[gnu::packed]] BlockIQ1_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t points[32];
    uint16_t high[8];  // bits 8 to 10 of four points, the scale, and whether the shift is down
};
static_assert(sizeof(BlockIQ1_S) == 50);

// Stores eight codes: values of the lattice in eighths, shifted by one eighth.
PLAIT_INLINE void put_shifted(int point, bool down, uint8_t* to) {
    put_codes(kGridIQ1_S[point] + (down ? -kEachByte : kEachByte), to);
}

PLAIT_INLINE void expand(const BlockIQ1_S& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const int high = block.high[g];
        scales[2 * g] = scales[2 * g + 1] =
            scale * static_cast<float>(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (int i = 0; i < 4; ++i)
            put_shifted(block.points[4 * g + i] | (high >> (3 * i) & 7) << 8, (high >> 15) != 0,
                        codes + 32 * g + 8 * i);
    }
}

// IQ1_M: 256 values in 16 groups of 16, a 3-bit scale for each, two points of a lattice of eight
// values -1, 0 and 1 with a shift each. 1.75 bits per value.
//   value = scale * (2 * scale3 + 1) * (lattice +- 1/8), here in eighths
struct [[gnu::packed]] BlockIQ1_M {
    static constexpr int kElements = 256;
    uint8_t points[32];
    uint8_t high[16];    // nibbles: bits 8 to 10 of a point, and whether the shift is down
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
            put_shifted(block.points[2 * g + i] | (high & 7) << 8, (high & 8) != 0,
                        codes + 16 * g + 8 * i);
        }
    }
}

// IQ2_XXS: 256 values in 8 groups of 32, a 4-bit scale for each, four points of a lattice of eight
// values, and their signs. 2.06 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
struct [[gnu::packed]] BlockIQ2_XXS {
    static constexpr int kElements = 256;
    struct [[gnu::packed]] Group {
        uint8_t points[4];
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
        const uint8_t* n = block.groups[g].points;
        put_signed(kGridIQ2_XXS[n[0]], kGridIQ2_XXS[n[1]], kGridIQ2_XXS[n[2]], kGridIQ2_XXS[n[3]],
                   even_signs(signs), codes + 32 * g);
    }
}

// IQ2_XS: 256 values in 16 groups of 16, a 4-bit scale for each, two points of eight values, and
// their signs. 2.31 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
struct [[gnu::packed]] BlockIQ2_XS {
    static constexpr int kElements = 256;
    uint16_t scale;       // f16
    uint16_t points[32];  // 9 bits, then 7 of signs
    uint8_t scales[8];    // nibbles
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
        __builtin_memcpy(&four, block.points + 4 * g, 8);
        const auto point = [&](int i) { return static_cast<int>(four >> (16 * i) & 511); };
        uint32_t signs = 0;
        for (int i = 0; i < 4; ++i)
            signs |= static_cast<uint32_t>(four >> (16 * i + 9) & 127) << (7 * i);
        put_signed(kGridIQ2_XS[point(0)], kGridIQ2_XS[point(1)], kGridIQ2_XS[point(2)],
                   kGridIQ2_XS[point(3)], even_signs(signs), codes + 32 * g);
    }
}

// IQ2_S: 256 values in 16 groups of 16, a 4-bit scale for each, two points of eight values, and
// their signs. 2.56 bits per value.
//   value = scale * (scale4 + 1/2) / 4 * (+-) lattice
struct [[gnu::packed]] BlockIQ2_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t points[32];
    uint8_t signs[32];
    uint8_t high[8];    // bits 8 and 9 of four points each
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
        const auto point = [&](int i) {
            return block.points[4 * g + i] | (block.high[g] >> (2 * i) & 3) << 8;
        };
        uint32_t signs;
        __builtin_memcpy(&signs, block.signs + 4 * g, 4);
        put_signed(kGridIQ2_S[point(0)], kGridIQ2_S[point(1)], kGridIQ2_S[point(2)],
                   kGridIQ2_S[point(3)], signs, codes + 32 * g);
    }
}

// IQ3_XXS: 256 values in 8 groups of 32, a 4-bit scale for each, eight points of a lattice of four
// values, and the signs of each eight. 3.06 bits per value.
//   value = scale * (scale4 + 1/2) / 2 * (+-) lattice
struct [[gnu::packed]] BlockIQ3_XXS {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t points[64];
    uint32_t signs[8];  // 7 bits of each two points, then the group's scale
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

PLAIT_INLINE void expand(const BlockIQ3_XXS& block, uint8_t* codes, float* scales) {
    const float scale = f16_to_f32(block.scale);
    for (int g = 0; g < 8; ++g) {
        const uint32_t signs = block.signs[g];
        scales[2 * g] = scales[2 * g + 1] = scale * (0.5f + static_cast<float>(signs >> 28)) * 0.5f;
        const auto two = [&](int i) {
            const uint8_t* n = block.points + 8 * g + 2 * i;
            return kGridIQ3_XXS[n[0]] | uint64_t{kGridIQ3_XXS[n[1]]} << 32;
        };
        put_signed(two(0), two(1), two(2), two(3), even_signs(signs), codes + 32 * g);
    }
}

// IQ3_S: 256 values in 8 groups of 32, a 4-bit scale for each, eight points of a lattice of four
// values, and their signs. 3.44 bits per value.
//   value = scale * (2 * scale4 + 1) * (+-) lattice
struct [[gnu::packed]] BlockIQ3_S {
    static constexpr int kElements = 256;
    uint16_t scale;  // f16
    uint8_t points[64];
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
            const uint8_t* n = block.points + 8 * g + 2 * i;
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
