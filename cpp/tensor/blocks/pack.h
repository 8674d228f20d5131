// Packing of codes, scales and minimums into blocks, the reverse of the decoders. Layouts: see the
// block types.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/float4.h"
#include "tensor/blocks/iq4.h"
#include "tensor/blocks/k_quants.h"
#include "tensor/blocks/legacy.h"
#include "tensor/blocks/low_bit.h"

namespace plait {

// Stores the low bits of a code at bit `shift` of a byte whose other bits stay.
PLAIT_INLINE void put_bits(uint8_t& byte, int code, int shift) {
    byte = static_cast<uint8_t>(byte | code << shift);
}

// Codes of `kCount` values in nibbles: byte j holds values j (low) and j + kCount / 2 (high).
template <int kCount>
PLAIT_INLINE void pack_nibbles(const int* codes, uint8_t* nibbles) {
    for (int j = 0; j < kCount / 2; ++j) {
        nibbles[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + kCount / 2] & 15) << 4);
    }
}

// Returns bit 4 of 32 codes.
PLAIT_INLINE uint32_t fifth_bits(const int* codes) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; ++i) fifth |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
    return fifth;
}

// Scales of the blocks with one scale: levels become codes, the lowest of them 0.
PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockQ4_0& block) {
    int codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = levels[i] + 8;
    block.scale = scale;
    pack_nibbles<32>(codes, block.nibbles);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockQ5_0& block) {
    int codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = levels[i] + 16;
    block.scale = scale;
    block.fifth = fifth_bits(codes);
    pack_nibbles<32>(codes, block.nibbles);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockQ8_0& block) {
    block.scale = scale;
    for (int i = 0; i < 32; ++i) block.quants[i] = static_cast<int8_t>(levels[i]);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockIQ4_NL& block) {
    int codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = nearest_iq4_level(static_cast<float>(levels[i]));
    block.scale = scale;
    pack_nibbles<32>(codes, block.nibbles);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockQ1_0& block) {
    block.scale = scale;
    for (uint8_t& byte : block.bits) byte = 0;
    for (int i = 0; i < 128; ++i) put_bits(block.bits[i / 8], levels[i] > 0, i % 8);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockQ2_0& block) {
    block.scale = scale;
    for (uint8_t& byte : block.quants) byte = 0;
    for (int i = 0; i < 64; ++i) put_bits(block.quants[i / 4], levels[i] + 1, 2 * (i % 4));
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockTQ2_0& block) {
    block.scale = scale;
    for (uint8_t& byte : block.quants) byte = 0;
    for (int i = 0; i < 256; ++i) {
        put_bits(block.quants[32 * (i / 128) + i % 32], levels[i] + 1, 2 * (i / 32 % 4));
    }
}

// Returns the byte of `digits` base-three digits, each level + 1, the first one the highest.
PLAIT_INLINE uint8_t pack_digits(const int* levels, int stride, int digits) {
    int value = 0;
    for (int d = 0; d < 5; ++d) value = 3 * value + (d < digits ? levels[stride * d] + 1 : 0);
    return static_cast<uint8_t>((256 * value + 242) / 243);
}

PLAIT_INLINE void pack(uint16_t scale, const int* levels, BlockTQ1_0& block) {
    block.scale = scale;
    for (int i = 0; i < 32; ++i) block.fives[i] = pack_digits(levels + i, 32, 5);
    for (int i = 0; i < 16; ++i) block.fives[32 + i] = pack_digits(levels + 160 + i, 16, 5);
    for (int i = 0; i < 4; ++i) block.fours[i] = pack_digits(levels + 240 + i, 4, 4);
}

// Blocks with a scale and a minimum: value = scale * code + minimum.
PLAIT_INLINE void pack(uint16_t scale, uint16_t minimum, const int* codes, BlockQ4_1& block) {
    block.scale = scale;
    block.minimum = minimum;
    pack_nibbles<32>(codes, block.nibbles);
}

PLAIT_INLINE void pack(uint16_t scale, uint16_t minimum, const int* codes, BlockQ5_1& block) {
    block.scale = scale;
    block.minimum = minimum;
    block.fifth = fifth_bits(codes);
    pack_nibbles<32>(codes, block.nibbles);
}

// Returns the code of twice an E2M1 number.
PLAIT_INLINE int e2m1_code(int doubled) {
    int code = 0;
    for (int i = 1; i < 16; ++i) code = kE2m1Doubled[i] == doubled && i != 8 ? i : code;
    return code;
}

// Blocks with a scale per group: levels with `group_scales` as the decoders multiply them.
PLAIT_INLINE void pack(uint16_t scale, const int* group_scales, const int* levels,
                       BlockQ3_K& block) {
    block = {};
    block.scale = scale;
    for (int group = 0; group < 16; ++group) {
        const int code = group_scales[group] + 32;
        put_bits(block.scales[group % 8], code & 15, 4 * (group / 8));
        put_bits(block.scales[8 + group % 4], code >> 4, 2 * (group / 4));
    }
    for (int i = 0; i < 256; ++i) {
        const int code = levels[i] + 4;
        put_bits(block.quants[32 * (i / 128) + i % 32], code & 3, 2 * (i / 32 % 4));
        put_bits(block.high[i % 32], code >> 2, i / 32);
    }
}

PLAIT_INLINE void pack(uint16_t scale, const int* group_scales, const int* levels,
                       BlockQ6_K& block) {
    block = {};
    block.scale = scale;
    for (int group = 0; group < 16; ++group)
        block.scales[group] = static_cast<int8_t>(group_scales[group]);
    for (int i = 0; i < 256; ++i) {
        const int code = levels[i] + 32, half = i / 128, quarter = i / 32 % 4;
        put_bits(block.low[64 * half + 32 * (quarter % 2) + i % 32], code & 15, 4 * (quarter / 2));
        put_bits(block.high[32 * half + i % 32], code >> 4, 2 * quarter);
    }
}

PLAIT_INLINE void pack(uint16_t scale, const int* group_scales, const int* levels,
                       BlockIQ4_XS& block) {
    block = {};
    block.scale = scale;
    unsigned high = 0;
    for (int group = 0; group < 8; ++group) {
        const int code = group_scales[group] + 32;
        put_bits(block.scales_low[group / 2], code & 15, 4 * (group % 2));
        high |= static_cast<unsigned>(code >> 4) << (2 * group);
        int codes[32];
        for (int i = 0; i < 32; ++i)
            codes[i] = nearest_iq4_level(static_cast<float>(levels[32 * group + i]));
        pack_nibbles<32>(codes, block.nibbles + 16 * group);
    }
    block.scales_high = static_cast<uint16_t>(high);
}

// Blocks with a scale and a minimum per group: value = scale * scales[g] * code - minimum *
// minimums[g].
PLAIT_INLINE void pack(uint16_t scale, uint16_t minimum, const ScaleMin* groups, const int* codes,
                       BlockQ2_K& block) {
    block = {};
    block.scale = scale;
    block.minimum = minimum;
    for (int group = 0; group < 16; ++group) {
        block.scales[group] =
            static_cast<uint8_t>(groups[group].scale | groups[group].minimum << 4);
    }
    for (int i = 0; i < 256; ++i)
        put_bits(block.quants[32 * (i / 128) + i % 32], codes[i], 2 * (i / 32 % 4));
}

PLAIT_INLINE void pack(uint16_t scale, uint16_t minimum, const ScaleMin* groups, const int* codes,
                       BlockQ4_K& block) {
    block = {};
    block.scale = scale;
    block.minimum = minimum;
    for (int group = 0; group < 8; ++group) set_scale_min(block.scales, group, groups[group]);
    for (int i = 0; i < 256; ++i)
        put_bits(block.nibbles[32 * (i / 64) + i % 32], codes[i], 4 * (i / 32 % 2));
}

PLAIT_INLINE void pack(uint16_t scale, uint16_t minimum, const ScaleMin* groups, const int* codes,
                       BlockQ5_K& block) {
    block = {};
    block.scale = scale;
    block.minimum = minimum;
    for (int group = 0; group < 8; ++group) set_scale_min(block.scales, group, groups[group]);
    for (int i = 0; i < 256; ++i) {
        put_bits(block.nibbles[32 * (i / 64) + i % 32], codes[i] & 15, 4 * (i / 32 % 2));
        put_bits(block.fifth[i % 32], codes[i] >> 4, i / 32);
    }
}

}  // namespace plait
