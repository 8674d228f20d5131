// Blocks of 256 values in groups, each group with a quantised scale: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
// Layouts: block_q2_K etc. in ggml-common.h; decoders: dequantize_row_q2_K etc. in ggml-quants.c
// (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/half.h"

namespace plait {

// Q2_K: 256 values as 2-bit integers in 16 groups of 16, each with a 4-bit scale and minimum.
// 2.625 bits per value.
//   value[16 g + i] = scale * (scales[g] & 15) * q - minimum * (scales[g] >> 4)
// quants holds two halves of 128 values in 32 bytes each: value 32 k + i of a half is bits
// [2 k, 2 k + 2) of byte i.
struct [[gnu::packed]] BlockQ2_K {
    static constexpr int kElements = 256;
    uint8_t scales[16];
    uint8_t quants[64];
    uint16_t scale;    // f16
    uint16_t minimum;  // f16
};
static_assert(sizeof(BlockQ2_K) == 84);

PLAIT_INLINE void decode(const BlockQ2_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 16; ++group) {
        const uint8_t packed = block.scales[group];
        const float step = scale * static_cast<float>(packed & 15);
        const float base = minimum * static_cast<float>(packed >> 4);
        const uint8_t* quants = block.quants + 32 * (group / 8) + 16 * (group % 2);
        const int shift = 2 * (group / 2 % 4);
        for (int i = 0; i < 16; ++i) {
            out[16 * group + i] = step * static_cast<float>(quants[i] >> shift & 3) - base;
        }
    }
}

// Q3_K: 256 values as 3-bit integers in 16 groups of 16, each with a 6-bit scale. 3.4375 bits per
// value.
//   value[16 g + i] = scale * (scale6(g) - 32) * ((low2 | high << 2) - 4)
// quants holds two halves of 128 values in 32 bytes each: value 32 k + i of a half is bits
// [2 k, 2 k + 2) of byte i. Bit k of high[i] is the third bit of value 32 k + i of the block.
struct [[gnu::packed]] BlockQ3_K {
    static constexpr int kElements = 256;
    uint8_t high[32];
    uint8_t quants[64];
    uint8_t scales[12];  // 16 of 6 bits, see scale6
    uint16_t scale;      // f16
};
static_assert(sizeof(BlockQ3_K) == 110);

// The low four bits of scales 0 to 7 and 8 to 15 are the nibbles of bytes 0 to 7; the high two bits
// of scale g are bits [2 (g / 4), 2 (g / 4) + 2) of byte 8 + g % 4.
PLAIT_INLINE int scale6(const BlockQ3_K& block, int group) {
    const int low = group < 8 ? block.scales[group] & 15 : block.scales[group - 8] >> 4;
    const int high = block.scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    return low | high << 4;
}

PLAIT_INLINE void decode(const BlockQ3_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int group = 0; group < 16; ++group) {
        const float step = scale * static_cast<float>(scale6(block, group) - 32);
        const uint8_t* quants = block.quants + 32 * (group / 8) + 16 * (group % 2);
        const uint8_t* high = block.high + 16 * (group % 2);
        const int shift = 2 * (group / 2 % 4);
        for (int i = 0; i < 16; ++i) {
            const int quant = (quants[i] >> shift & 3) | (high[i] >> (group / 2) & 1) << 2;
            out[16 * group + i] = step * static_cast<float>(quant - 4);
        }
    }
}

// The packed scales of Q4_K and Q5_K: eight groups, each with a 6-bit scale and a 6-bit minimum.
// Source: get_scale_min_k4 in ggml-quants.c (ggml).
struct ScaleMin {
    int scale, minimum;  // 0 to 63
};

// Groups 0 to 3 are the low six bits of bytes 0 to 3 (scale) and 4 to 7 (minimum). Groups 4 to 7
// have their low four bits in bytes 8 to 11 and their high two on top of the bytes of groups 0 to
// 3.
PLAIT_INLINE ScaleMin scale_min(const uint8_t* packed, int group) {
    if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
    return {(packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4,
            (packed[group + 4] >> 4) | (packed[group] >> 6) << 4};
}

// The reverse of scale_min(). The bytes must be zero before the first call.
PLAIT_INLINE void set_scale_min(uint8_t* packed, int group, ScaleMin value) {
    const auto put = [packed](int byte, int bits) {
        packed[byte] = static_cast<uint8_t>(packed[byte] | bits);
    };
    if (group < 4) {
        put(group, value.scale);
        put(group + 4, value.minimum);
    } else {
        put(group + 4, (value.scale & 15) | (value.minimum & 15) << 4);
        put(group - 4, (value.scale >> 4) << 6);
        put(group, (value.minimum >> 4) << 6);
    }
}

// Q4_K: 256 values as 4-bit integers in 8 groups of 32, each with a 6-bit scale and minimum.
// 4.5 bits per value.
//   value[32 g + i] = scale * scale6(g) * nibble - minimum * minimum6(g)
// Bytes [32 p, 32 p + 32) of nibbles hold group 2 p (low) and group 2 p + 1 (high).
struct [[gnu::packed]] BlockQ4_K {
    static constexpr int kElements = 256;
    uint16_t scale;      // f16
    uint16_t minimum;    // f16
    uint8_t scales[12];  // see scale_min
    uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

PLAIT_INLINE void decode(const BlockQ4_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(block.scales, group);
        const float step = scale * static_cast<float>(packed.scale);
        const float base = minimum * static_cast<float>(packed.minimum);
        const uint8_t* nibbles = block.nibbles + 32 * (group / 2);
        const int shift = 4 * (group % 2);
        for (int i = 0; i < 32; ++i) {
            out[32 * group + i] = step * static_cast<float>(nibbles[i] >> shift & 15) - base;
        }
    }
}

// Q5_K: 256 values as 5-bit integers in 8 groups of 32, each with a 6-bit scale and minimum.
// 5.5 bits per value.
//   value[32 g + i] = scale * scale6(g) * (nibble | fifth << 4) - minimum * minimum6(g)
// Bytes [32 p, 32 p + 32) of nibbles hold group 2 p (low) and group 2 p + 1 (high); bit g of
// fifth[i] is that of value 32 g + i.
struct [[gnu::packed]] BlockQ5_K {
    static constexpr int kElements = 256;
    uint16_t scale;      // f16
    uint16_t minimum;    // f16
    uint8_t scales[12];  // see scale_min
    uint8_t fifth[32];
    uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

PLAIT_INLINE void decode(const BlockQ5_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int group = 0; group < 8; ++group) {
        const ScaleMin packed = scale_min(block.scales, group);
        const float step = scale * static_cast<float>(packed.scale);
        const float base = minimum * static_cast<float>(packed.minimum);
        const uint8_t* nibbles = block.nibbles + 32 * (group / 2);
        const int shift = 4 * (group % 2);
        for (int i = 0; i < 32; ++i) {
            const int quant = (nibbles[i] >> shift & 15) | (block.fifth[i] >> group & 1) << 4;
            out[32 * group + i] = step * static_cast<float>(quant) - base;
        }
    }
}

// Q6_K: 256 values as 6-bit integers in 16 groups of 16, each with an 8-bit scale. 6.5625 bits per
// value.
//   value = scale * scales[group] * ((low4 | high2 << 4) - 32)
// The block is two halves of 128 values, each four quarters of 32. In a half's 64 bytes of low and
// 32 of high, value i of quarter q has its low bits in nibble q / 2 of byte 32 (q % 2) + i and its
// high bits in bits [2 q, 2 q + 2) of byte i.
struct [[gnu::packed]] BlockQ6_K {
    static constexpr int kElements = 256;
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale;  // f16
};
static_assert(sizeof(BlockQ6_K) == 210);

PLAIT_INLINE void decode(const BlockQ6_K& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int group = 0; group < 16; ++group) {
        const float step = scale * static_cast<float>(block.scales[group]);
        const int half = group / 8, quarter = group / 2 % 4, first = 16 * (group % 2);
        const uint8_t* low = block.low + 64 * half + 32 * (quarter % 2) + first;
        const uint8_t* high = block.high + 32 * half + first;
        for (int i = 0; i < 16; ++i) {
            const int quant = (low[i] >> (4 * (quarter / 2)) & 15) | (high[i] >> (2 * quarter) & 3)
                                                                         << 4;
            out[16 * group + i] = step * static_cast<float>(quant - 32);
        }
    }
}

}  // namespace plait
