// Integers of one or two bits with one scale per block: Q1_0, Q2_0, TQ1_0, TQ2_0. Layouts:
// block_q1_0 etc. in ggml-common.h; decoders: dequantize_row_q1_0 etc. in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

// Q1_0: 128 values, each the scale or its negative. 1.125 bits per value.
//   value[i] = scale * (bit i ? 1 : -1)
struct [[gnu::packed]] BlockQ1_0 {
    static constexpr int kElements = 128;
    uint16_t scale;    // f16
    uint8_t bits[16];  // bit j of byte k: value 8 k + j
};
static_assert(sizeof(BlockQ1_0) == 18);

PLAIT_INLINE void expand(const BlockQ1_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 8; ++g) scales[g] = f16_to_f32(block.scale);
    for (int k = 0; k < 16; ++k) {
        // Byte j of `one_bit` is bit j of the byte, at its place there.
        const uint64_t one_bit = block.bits[k] * kEachByte & 0x8040201008040201;
        const uint64_t is_set = (one_bit + 0x7f * kEachByte) >> 7 & kEachByte;
        put_codes((kExpandedOffset - 1) * kEachByte + 2 * is_set, codes + 8 * k);
    }
}

// Q2_0: 64 values -1, 0, 1 and 2 with one scale, two bits each. 2.25 bits per value.
//   value = scale * (bits - 1)
struct [[gnu::packed]] BlockQ2_0 {
    static constexpr int kElements = 64;
    uint16_t scale;      // f16
    uint8_t quants[16];  // bits [2 k, 2 k + 2) of byte j: value 4 j + k
};
static_assert(sizeof(BlockQ2_0) == 18);

PLAIT_INLINE void expand(const BlockQ2_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 4; ++g) scales[g] = f16_to_f32(block.scale);
    for (int j = 0; j < 16; j += 2) {
        const uint64_t two = block.quants[j] | uint64_t{block.quants[j + 1]} << 32;
        const uint64_t quants = (two | two << 6 | two << 12 | two << 18) & 3 * kEachByte;
        put_codes((kExpandedOffset - 1) * kEachByte + quants, codes + 4 * j);
    }
}

// TQ1_0: 256 values -1, 0 and 1 with one scale, five digits of base three in a byte. 1.69 bits per
// value. A byte is ceil(256 * v / 243), where v is the base-three number of its digits, digit 0 the
// highest. Digit n is floor(byte * 3^(n + 1) / 256) modulo 3.
struct [[gnu::packed]] BlockTQ1_0 {
    static constexpr int kElements = 256;
    uint8_t fives[48];  // byte i: values i + 32 n if i < 32, else 128 + i + 16 n
    uint8_t fours[4];   // byte i: values 240 + i + 4 n
    uint16_t scale;     // f16
};
static_assert(sizeof(BlockTQ1_0) == 54);

PLAIT_INLINE void put_digits(const uint8_t* bytes, int n, int digits, uint8_t* to) {
    for (int i = 0; i < n; ++i) {
        uint8_t left = bytes[i];
        for (int d = 0; d < digits; ++d) {
            to[n * d + i] = static_cast<uint8_t>((left * 3 >> 8) + kExpandedOffset - 1);
            left = static_cast<uint8_t>(left * 3);
        }
    }
}

PLAIT_INLINE void expand(const BlockTQ1_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 16; ++g) scales[g] = f16_to_f32(block.scale);
    put_digits(block.fives, 32, 5, codes);
    put_digits(block.fives + 32, 16, 5, codes + 160);
    put_digits(block.fours, 4, 4, codes + 240);
}

// TQ2_0: 256 values -1, 0 and 1 (and 2) with one scale, two bits each. 2.06 bits per value.
//   value = scale * (bits - 1)
struct [[gnu::packed]] BlockTQ2_0 {
    static constexpr int kElements = 256;
    uint8_t quants[64];  // bits [2 k, 2 k + 2) of byte 32 h + i: value 128 h + 32 k + i
    uint16_t scale;      // f16
};
static_assert(sizeof(BlockTQ2_0) == 66);

PLAIT_INLINE void expand(const BlockTQ2_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 16; ++g) scales[g] = f16_to_f32(block.scale);
    for (int part = 0; part < 8; ++part)
        for (int i = 0; i < 32; ++i)
            codes[32 * part + i] = static_cast<uint8_t>(
                (block.quants[32 * (part / 4) + i] >> (2 * (part % 4)) & 3) + kExpandedOffset - 1);
}

}  // namespace plait
