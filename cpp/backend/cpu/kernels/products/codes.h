// Packing of a file's blocks into panels, as codes and scales, and unpacking. Every bit of the file
// is kept: packing only changes the order.
//
// For every 32 columns, each lane has one 32-bit word per bit of its codes. Word by word:
//   4 low bits    words 0-3: byte i of word 2 h + j has code 16 h + 4 j + i (low nibble) and code
//                 16 h + 8 + 4 j + i (high nibble)
//   2 bits        words 0, 1: bits [2 g, 2 g + 2) of byte i of word h belong to code 16 h + 4 g + i
//   1 bit         one word: bit g of byte i belongs to code 4 g + i
//   8 bits        words 0-7: byte i of word g is code 4 g + i
// 6-bit codes are 4 low bits and 2 more, 5-bit codes 4 and 1, 3-bit codes 2 and 1. In a panel, word
// w of lane l is at byte 4 * (w * lanes + l), so a register holds four columns of every lane.
//
// Instruction sets whose lane_bytes is 8 multiply eight columns of two lanes. Words 2 h and 2 h + 1
// of a lane are side by side there, so that low nibbles, high nibbles or words of 8 bits are eight
// columns. Two places differ: with 2 bits, bits [2 g, 2 g + 2) of byte i of word h belong to code
// 8 g + 4 h + i, and with 1 bit, bit 4 h + g of byte i to code 8 g + 4 h + i.
#pragma once

#include <stdint.h>
#include <string.h>

#include "backend/cpu/kernels/products/packed.h"
#include "base/inline.h"
#include "tensor/blocks/float4.h"
#include "tensor/blocks/iq4.h"
#include "tensor/blocks/k_quants.h"
#include "tensor/blocks/legacy.h"
#include "tensor/blocks/low_bit.h"

// Every block type: X(Format, Block).
#define PLAIT_BLOCKS(X)    \
    X(q8_0, BlockQ8_0)     \
    X(q4_0, BlockQ4_0)     \
    X(q4_1, BlockQ4_1)     \
    X(q5_0, BlockQ5_0)     \
    X(q5_1, BlockQ5_1)     \
    X(q2_k, BlockQ2_K)     \
    X(q3_k, BlockQ3_K)     \
    X(q4_k, BlockQ4_K)     \
    X(q5_k, BlockQ5_K)     \
    X(q6_k, BlockQ6_K)     \
    X(iq4_nl, BlockIQ4_NL) \
    X(iq4_xs, BlockIQ4_XS) \
    X(mxfp4, BlockMXFP4)   \
    X(tq2_0, BlockTQ2_0)   \
    X(nvfp4, BlockNVFP4)   \
    X(q1_0, BlockQ1_0)     \
    X(q2_0, BlockQ2_0)

namespace plait::cpu {

// kBits: bits of a code. A block's scales form a record of kHalves f16 values, followed by kBytes
// bytes. kBlock: bytes of a record and the codes that follow it, for one lane.
template <class Block>
struct BlockLayout;
#define PLAIT_PARTS(Block, bits, halves, bytes)                              \
    template <>                                                              \
    struct BlockLayout<Block> {                                              \
        static constexpr int kBits = bits, kHalves = halves, kBytes = bytes; \
        static constexpr int kRecord = 2 * kHalves + kBytes;                 \
        static constexpr int kBlock = kRecord + Block::kElements * bits / 8; \
        static_assert(kBlock == sizeof(Block));                              \
    };
PLAIT_PARTS(BlockQ8_0, 8, 1, 0)
PLAIT_PARTS(BlockQ4_0, 4, 1, 0)
PLAIT_PARTS(BlockQ4_1, 4, 2, 0)
PLAIT_PARTS(BlockQ5_0, 5, 1, 0)
PLAIT_PARTS(BlockQ5_1, 5, 2, 0)
PLAIT_PARTS(BlockQ2_K, 2, 2, 16)
PLAIT_PARTS(BlockQ3_K, 3, 1, 12)
PLAIT_PARTS(BlockQ4_K, 4, 2, 12)
PLAIT_PARTS(BlockQ5_K, 5, 2, 12)
PLAIT_PARTS(BlockQ6_K, 6, 1, 16)
PLAIT_PARTS(BlockIQ4_NL, 4, 1, 0)
PLAIT_PARTS(BlockIQ4_XS, 4, 1, 6)
PLAIT_PARTS(BlockMXFP4, 4, 0, 1)
PLAIT_PARTS(BlockTQ2_0, 2, 1, 0)
PLAIT_PARTS(BlockNVFP4, 4, 0, 4)
PLAIT_PARTS(BlockQ1_0, 1, 1, 0)
PLAIT_PARTS(BlockQ2_0, 2, 1, 0)
#undef PLAIT_PARTS

// ---- split() turns a block into codes, in the order of its values, and a record; join() reverses
// it ----

PLAIT_INLINE void put_half(uint8_t* record, int index, uint16_t half) {
    memcpy(record + 2 * index, &half, sizeof half);
}
PLAIT_INLINE uint16_t get_half(const uint8_t* record, int index) {
    uint16_t half;
    memcpy(&half, record + 2 * index, sizeof half);
    return half;
}

// Byte j holds values j and j + 16.
PLAIT_INLINE void split_nibbles(const uint8_t* nibbles, uint8_t* codes) {
    for (int j = 0; j < 16; ++j) {
        codes[j] = nibbles[j] & 15;
        codes[j + 16] = static_cast<uint8_t>(nibbles[j] >> 4);
    }
}
PLAIT_INLINE void join_nibbles(const uint8_t* codes, uint8_t* nibbles) {
    for (int j = 0; j < 16; ++j)
        nibbles[j] = static_cast<uint8_t>((codes[j] & 15) | codes[j + 16] << 4);
}

PLAIT_INLINE void split(const BlockQ8_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    memcpy(codes, block.quants, 32);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ8_0& block) {
    block.scale = get_half(record, 0);
    memcpy(block.quants, codes, 32);
}

PLAIT_INLINE void split(const BlockQ4_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_nibbles(block.nibbles, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ4_0& block) {
    block.scale = get_half(record, 0);
    join_nibbles(codes, block.nibbles);
}

PLAIT_INLINE void split(const BlockIQ4_NL& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_nibbles(block.nibbles, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockIQ4_NL& block) {
    block.scale = get_half(record, 0);
    join_nibbles(codes, block.nibbles);
}

PLAIT_INLINE void split(const BlockQ4_1& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    put_half(record, 1, block.minimum);
    split_nibbles(block.nibbles, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ4_1& block) {
    block.scale = get_half(record, 0);
    block.minimum = get_half(record, 1);
    join_nibbles(codes, block.nibbles);
}

PLAIT_INLINE void split(const BlockMXFP4& block, uint8_t* codes, uint8_t* record) {
    record[0] = block.exponent;
    split_nibbles(block.nibbles, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockMXFP4& block) {
    block.exponent = record[0];
    join_nibbles(codes, block.nibbles);
}

PLAIT_INLINE void split(const BlockNVFP4& block, uint8_t* codes, uint8_t* record) {
    memcpy(record, block.scales, 4);
    for (int i = 0; i < 32; ++i) {
        uint8_t* group = codes + i / 8 * 16 + i % 8;
        group[0] = block.nibbles[i] & 15;
        group[8] = static_cast<uint8_t>(block.nibbles[i] >> 4);
    }
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockNVFP4& block) {
    memcpy(block.scales, record, 4);
    for (int i = 0; i < 32; ++i) {
        const uint8_t* group = codes + i / 8 * 16 + i % 8;
        block.nibbles[i] = static_cast<uint8_t>((group[0] & 15) | group[8] << 4);
    }
}

PLAIT_INLINE void split_fifth(uint32_t fifth, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (fifth >> i & 1) << 4);
}
PLAIT_INLINE uint32_t join_fifth(const uint8_t* codes) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; ++i) fifth |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
    return fifth;
}

PLAIT_INLINE void split(const BlockQ5_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_nibbles(block.nibbles, codes);
    split_fifth(block.fifth, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ5_0& block) {
    block.scale = get_half(record, 0);
    join_nibbles(codes, block.nibbles);
    block.fifth = join_fifth(codes);
}

PLAIT_INLINE void split(const BlockQ5_1& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    put_half(record, 1, block.minimum);
    split_nibbles(block.nibbles, codes);
    split_fifth(block.fifth, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ5_1& block) {
    block.scale = get_half(record, 0);
    block.minimum = get_half(record, 1);
    join_nibbles(codes, block.nibbles);
    block.fifth = join_fifth(codes);
}

// The 6-bit scales and minima of Q4_K and Q5_K in 12 bytes that vector instructions unpack
// together: byte j < 8 has the low nibbles of scale j and minimum j; byte 8 + j has the high two
// bits of scale j, scale j + 4, minimum j and minimum j + 4, starting at the lowest bits.
PLAIT_INLINE void split_scale_min(const uint8_t* packed, uint8_t* bytes) {
    uint8_t scales[8], minima[8];
    for (int j = 0; j < 8; ++j) {
        const ScaleMin both = scale_min(packed, j);
        scales[j] = static_cast<uint8_t>(both.scale);
        minima[j] = static_cast<uint8_t>(both.minimum);
        bytes[j] = static_cast<uint8_t>((scales[j] & 15) | minima[j] << 4);
    }
    for (int j = 0; j < 4; ++j)
        bytes[8 + j] = static_cast<uint8_t>(scales[j] >> 4 | scales[j + 4] >> 4 << 2 |
                                            minima[j] >> 4 << 4 | minima[j + 4] >> 4 << 6);
}
PLAIT_INLINE void join_scale_min(const uint8_t* bytes, uint8_t* packed) {
    uint8_t scales[8], minima[8];
    for (int j = 0; j < 8; ++j) {
        const int high = bytes[8 + j % 4] >> (2 * (j / 4));
        scales[j] = static_cast<uint8_t>((bytes[j] & 15) | (high & 3) << 4);
        minima[j] = static_cast<uint8_t>((bytes[j] >> 4) | (high >> 4 & 3) << 4);
    }
    for (int j = 0; j < 4; ++j) {
        packed[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
        packed[j + 4] = static_cast<uint8_t>(minima[j] | minima[j + 4] >> 4 << 6);
        packed[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | minima[j + 4] << 4);
    }
}

// Bytes [32 p, 32 p + 32) hold groups 2 p and 2 p + 1 of 32.
PLAIT_INLINE void split_group_nibbles(const uint8_t* nibbles, uint8_t* codes) {
    for (int p = 0; p < 4; ++p) {
        for (int i = 0; i < 32; ++i) {
            codes[64 * p + i] = nibbles[32 * p + i] & 15;
            codes[64 * p + 32 + i] = static_cast<uint8_t>(nibbles[32 * p + i] >> 4);
        }
    }
}
PLAIT_INLINE void join_group_nibbles(const uint8_t* codes, uint8_t* nibbles) {
    for (int p = 0; p < 4; ++p) {
        for (int i = 0; i < 32; ++i) {
            nibbles[32 * p + i] =
                static_cast<uint8_t>((codes[64 * p + i] & 15) | codes[64 * p + 32 + i] << 4);
        }
    }
}

PLAIT_INLINE void split(const BlockQ4_K& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    put_half(record, 1, block.minimum);
    split_scale_min(block.scales, record + 4);
    split_group_nibbles(block.nibbles, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ4_K& block) {
    block.scale = get_half(record, 0);
    block.minimum = get_half(record, 1);
    join_scale_min(record + 4, block.scales);
    join_group_nibbles(codes, block.nibbles);
}

PLAIT_INLINE void split(const BlockQ5_K& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    put_half(record, 1, block.minimum);
    split_scale_min(block.scales, record + 4);
    split_group_nibbles(block.nibbles, codes);
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 32; ++i) {
            codes[32 * g + i] =
                static_cast<uint8_t>(codes[32 * g + i] | (block.fifth[i] >> g & 1) << 4);
        }
    }
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ5_K& block) {
    block.scale = get_half(record, 0);
    block.minimum = get_half(record, 1);
    join_scale_min(record + 4, block.scales);
    join_group_nibbles(codes, block.nibbles);
    for (int i = 0; i < 32; ++i) {
        int bits = 0;
        for (int g = 0; g < 8; ++g) bits |= (codes[32 * g + i] >> 4 & 1) << g;
        block.fifth[i] = static_cast<uint8_t>(bits);
    }
}

PLAIT_INLINE void split(const BlockQ6_K& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    memcpy(record + 2, block.scales, 16);
    for (int part = 0; part < 8; ++part) {
        const int half = part / 4, quarter = part % 4;
        const uint8_t* low = block.low + 64 * half + 32 * (quarter % 2);
        const uint8_t* high = block.high + 32 * half;
        for (int i = 0; i < 32; ++i) {
            codes[32 * part + i] = static_cast<uint8_t>((low[i] >> (4 * (quarter / 2)) & 15) |
                                                        (high[i] >> (2 * quarter) & 3) << 4);
        }
    }
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ6_K& block) {
    block.scale = get_half(record, 0);
    memcpy(block.scales, record + 2, 16);
    for (int half = 0; half < 2; ++half) {
        const uint8_t* c = codes + 128 * half;
        for (int i = 0; i < 64; ++i)
            block.low[64 * half + i] = static_cast<uint8_t>((c[i] & 15) | c[i + 64] << 4);
        for (int i = 0; i < 32; ++i) {
            block.high[32 * half + i] = static_cast<uint8_t>(
                c[i] >> 4 | c[i + 32] >> 4 << 2 | c[i + 64] >> 4 << 4 | c[i + 96] >> 4 << 6);
        }
    }
}

// Value 32 k + i of each half of 128 is bits [2 k, 2 k + 2) of the half's byte i.
PLAIT_INLINE void split_pairs(const uint8_t* quants, uint8_t* codes) {
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; ++i)
            codes[32 * part + i] = quants[32 * (part / 4) + i] >> (2 * (part % 4)) & 3;
    }
}
PLAIT_INLINE void join_pairs(const uint8_t* codes, uint8_t* quants) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t* c = codes + 128 * half;
        for (int i = 0; i < 32; ++i) {
            quants[32 * half + i] = static_cast<uint8_t>(
                (c[i] & 3) | (c[i + 32] & 3) << 2 | (c[i + 64] & 3) << 4 | (c[i + 96] & 3) << 6);
        }
    }
}

PLAIT_INLINE void split(const BlockQ2_K& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    put_half(record, 1, block.minimum);
    memcpy(record + 4, block.scales, 16);
    split_pairs(block.quants, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ2_K& block) {
    block.scale = get_half(record, 0);
    block.minimum = get_half(record, 1);
    memcpy(block.scales, record + 4, 16);
    join_pairs(codes, block.quants);
}

// The 12 bytes of 6-bit scales are copied from the file: see scale6() in q3_k.h.
PLAIT_INLINE void split(const BlockQ3_K& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    memcpy(record + 2, block.scales, 12);
    split_pairs(block.quants, codes);
    for (int part = 0; part < 8; ++part) {
        for (int i = 0; i < 32; ++i) {
            codes[32 * part + i] =
                static_cast<uint8_t>(codes[32 * part + i] | (block.high[i] >> part & 1) << 2);
        }
    }
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ3_K& block) {
    block.scale = get_half(record, 0);
    memcpy(block.scales, record + 2, 12);
    join_pairs(codes, block.quants);
    for (int i = 0; i < 32; ++i) {
        int bits = 0;
        for (int part = 0; part < 8; ++part) bits |= (codes[32 * part + i] >> 2 & 1) << part;
        block.high[i] = static_cast<uint8_t>(bits);
    }
}

// The 6-bit scales of IQ4_XS in 6 bytes that vector instructions unpack together: byte j < 4 has
// the low nibbles of scales j and j + 4; byte 4 + j has the high two bits of scales j, j + 2, j + 4
// and j + 6, starting at the lowest bits.
PLAIT_INLINE void split(const BlockIQ4_XS& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    memset(record + 2, 0, 6);
    for (int g = 0; g < 8; ++g) {
        const int scale = scale6(block, g);
        record[2 + g % 4] = static_cast<uint8_t>(record[2 + g % 4] | (scale & 15) << (g / 4 * 4));
        record[6 + g % 2] = static_cast<uint8_t>(record[6 + g % 2] | scale >> 4 << (g / 2 * 2));
        split_nibbles(block.nibbles + 16 * g, codes + 32 * g);
    }
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockIQ4_XS& block) {
    block.scale = get_half(record, 0);
    block.scales_high = 0;
    memset(block.scales_low, 0, 4);
    for (int g = 0; g < 8; ++g) {
        const int low = record[2 + g % 4] >> (g / 4 * 4) & 15;
        const int high = record[6 + g % 2] >> (g / 2 * 2) & 3;
        block.scales_low[g / 2] =
            static_cast<uint8_t>(block.scales_low[g / 2] | low << (g % 2 * 4));
        block.scales_high = static_cast<uint16_t>(block.scales_high | high << (2 * g));
        join_nibbles(codes + 32 * g, block.nibbles + 16 * g);
    }
}

PLAIT_INLINE void split(const BlockTQ2_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_pairs(block.quants, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockTQ2_0& block) {
    block.scale = get_half(record, 0);
    join_pairs(codes, block.quants);
}

// Codes of kBits bits, the first of a byte in its lowest bits.
template <int kBits>
PLAIT_INLINE void split_fields(const uint8_t* bytes, int n, uint8_t* codes) {
    constexpr int kEach = 8 / kBits;
    for (int i = 0; i < n; ++i)
        codes[i] = bytes[i / kEach] >> (kBits * (i % kEach)) & ((1 << kBits) - 1);
}
template <int kBits>
PLAIT_INLINE void join_fields(const uint8_t* codes, int n, uint8_t* bytes) {
    constexpr int kEach = 8 / kBits;
    memset(bytes, 0, static_cast<size_t>(n / kEach));
    for (int i = 0; i < n; ++i)
        bytes[i / kEach] =
            static_cast<uint8_t>(bytes[i / kEach] | codes[i] << (kBits * (i % kEach)));
}

PLAIT_INLINE void split(const BlockQ2_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_fields<2>(block.quants, BlockQ2_0::kElements, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ2_0& block) {
    block.scale = get_half(record, 0);
    join_fields<2>(codes, BlockQ2_0::kElements, block.quants);
}

PLAIT_INLINE void split(const BlockQ1_0& block, uint8_t* codes, uint8_t* record) {
    put_half(record, 0, block.scale);
    split_fields<1>(block.bits, BlockQ1_0::kElements, codes);
}
PLAIT_INLINE void join(const uint8_t* codes, const uint8_t* record, BlockQ1_0& block) {
    block.scale = get_half(record, 0);
    join_fields<1>(codes, BlockQ1_0::kElements, block.bits);
}

// ---- 32 codes of one lane of a panel ----

PLAIT_INLINE uint32_t word_of(const uint8_t* codes) {
    uint32_t word;
    memcpy(&word, codes, 4);
    return word;
}

// The byte of a word, of kBits words for each lane. A last word without a partner is alone.
template <int kBits>
PLAIT_INLINE int64_t word_offset(int word, const PackedWeight& w, int64_t lane) {
    if (w.isa->lane_bytes == 8 && word < kBits / 2 * 2)
        return 8 * (word / 2 * w.lanes + lane) + word % 2 * 4;
    return 4 * (word * w.lanes + lane);
}

// The four codes that are field `field` of word `word`, of words with 4 low bits, or with fewer.
PLAIT_INLINE int first_code_of_nibbles(int word, int field) {
    return 16 * (word / 2) + 4 * (word % 2) + 8 * field;
}
PLAIT_INLINE int first_code_of_pairs(int word, int field, const PackedWeight& w) {
    return w.isa->lane_bytes == 8 ? 8 * field + 4 * word : 16 * word + 4 * field;
}
PLAIT_INLINE int first_code_of_bits(int field, const PackedWeight& w) {
    return w.isa->lane_bytes == 8 ? 8 * (field % 4) + 4 * (field / 4) : 4 * field;
}

template <int kBits>
PLAIT_INLINE void pack_codes(const uint8_t* codes, uint8_t* block, const PackedWeight& w,
                             int64_t lane) {
    const auto put = [&](int word, uint32_t value) {
        memcpy(block + word_offset<kBits>(word, w, lane), &value, 4);
    };
    int word = 0;
    if constexpr (kBits == 8) {
        for (int g = 0; g < 8; ++g) put(g, word_of(codes + 4 * g));
        return;
    }
    constexpr int kLow = kBits >= 4 ? 4 : kBits / 2 * 2;
    if constexpr (kLow == 4) {
        for (; word < 4; ++word) {
            const uint32_t low = word_of(codes + first_code_of_nibbles(word, 0));
            const uint32_t high = word_of(codes + first_code_of_nibbles(word, 1));
            put(word, (low & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4);
        }
    }
    if constexpr (kBits == 6 || kLow == 2) {
        constexpr int kShift = kBits == 6 ? 4 : 0;
        for (int h = 0; h < 2; ++h) {
            uint32_t value = 0;
            for (int g = 0; g < 4; ++g)
                value |= (word_of(codes + first_code_of_pairs(h, g, w)) >> kShift & 0x03030303)
                         << (2 * g);
            put(word++, value);
        }
    }
    if constexpr (kBits % 2 == 1) {
        uint32_t value = 0;
        for (int g = 0; g < 8; ++g)
            value |= (word_of(codes + first_code_of_bits(g, w)) >> kLow & 0x01010101) << g;
        put(word++, value);
    }
}

template <int kBits>
PLAIT_INLINE void unpack_codes(const uint8_t* block, const PackedWeight& w, int64_t lane,
                               uint8_t* codes) {
    const auto get = [&](int word) { return word_of(block + word_offset<kBits>(word, w, lane)); };
    // Sets or adds bits of four codes.
    const auto set = [&](int first, uint32_t value) { memcpy(codes + first, &value, 4); };
    const auto add = [&](int first, uint32_t value) { set(first, word_of(codes + first) | value); };
    if constexpr (kBits == 8) {
        for (int word = 0; word < 8; ++word) set(4 * word, get(word));
        return;
    }
    constexpr int kLow = kBits >= 4 ? 4 : kBits / 2 * 2;
    if constexpr (kLow == 4) {
        for (int i = 0; i < 8; ++i)
            set(first_code_of_nibbles(i / 2, i % 2), get(i / 2) >> (4 * (i % 2)) & 0x0f0f0f0f);
    }
    if constexpr (kBits == 6 || kLow == 2) {
        for (int i = 0; i < 8; ++i) {
            const int first = first_code_of_pairs(i / 4, i % 4, w);
            const uint32_t value = get((kBits == 6 ? 4 : 0) + i / 4) >> (2 * (i % 4)) & 0x03030303;
            kBits == 6 ? add(first, value << 4) : set(first, value);
        }
    }
    if constexpr (kBits % 2 == 1) {
        for (int i = 0; i < 8; ++i) {
            const uint32_t value = (get(kLow) >> i & 0x01010101) << kLow;
            kLow > 0 ? add(first_code_of_bits(i, w), value) : set(first_code_of_bits(i, w), value);
        }
    }
}

// ---- A whole file block in a panel ----

template <class Block>
concept HasLayout = requires {
    BlockLayout<Block>::kBits;
};

template <HasLayout Block>
PLAIT_INLINE void pack_block(const Block& source, const PackedWeight& to, unsigned char* panel,
                             int64_t lane, int64_t index) {
    using P = BlockLayout<Block>;
    uint8_t codes[Block::kElements];
    uint8_t record[P::kRecord];
    split(source, codes, record);
    if constexpr (P::kBits == 8) {
        for (uint8_t& code : codes) code ^= to.code_flip();
    }
    unsigned char* out = panel + index * P::kBlock * to.lanes;
    for (int i = 0; i < P::kHalves; ++i) memcpy(out + 2 * (i * to.lanes + lane), record + 2 * i, 2);
    for (int i = 2 * P::kHalves; i < P::kRecord; ++i) out[i * to.lanes + lane] = record[i];
    out += P::kRecord * to.lanes;
    for (int k = 0; k < Block::kElements; k += 32, out += 4 * P::kBits * to.lanes)
        pack_codes<P::kBits>(codes + k, out, to, lane);
}

template <HasLayout Block>
PLAIT_INLINE void unpack_block(const PackedWeight& from, const unsigned char* panel, int64_t lane,
                               int64_t index, Block& target) {
    using P = BlockLayout<Block>;
    uint8_t codes[Block::kElements];
    uint8_t record[P::kRecord];
    const unsigned char* in = panel + index * P::kBlock * from.lanes;
    for (int i = 0; i < P::kHalves; ++i)
        memcpy(record + 2 * i, in + 2 * (i * from.lanes + lane), 2);
    for (int i = 2 * P::kHalves; i < P::kRecord; ++i) record[i] = in[i * from.lanes + lane];
    in += P::kRecord * from.lanes;
    for (int k = 0; k < Block::kElements; k += 32, in += 4 * P::kBits * from.lanes)
        unpack_codes<P::kBits>(in, from, lane, codes + k);
    if constexpr (P::kBits == 8) {
        for (uint8_t& code : codes) code ^= from.code_flip();
    }
    join(codes, record, target);
}

// Calls copy(in_panel, in_block, bytes) for each part of a block of an irregular type.
template <class Block, class Copy>
PLAIT_INLINE void copy_parts(const PackedWeight& w, int64_t lane, int64_t index, Copy copy) {
    constexpr int64_t kSize = sizeof(Block);
    int64_t in_panel = index * kSize * w.lanes, in_block = 0;
    const auto part = [&](int64_t from, int bytes) {
        copy(in_panel + bytes * lane, from, bytes);
        in_panel += bytes * w.lanes;
    };
    if (!w.isa->packs_words) return part(0, kSize);
    if constexpr (requires(Block b) { b.scale; }) {
        constexpr int64_t kScale = __builtin_offsetof(Block, scale);
        static_assert(kScale == 0 || kScale == kSize - 2);
        part(kScale, 2);
        if (kScale == 0) in_block = 2;
    }
    for (int64_t word = 0; word < kSize / 4; ++word) part(in_block + 4 * word, 4);
}

template <class Block>
PLAIT_INLINE void pack_block(const Block& source, const PackedWeight& to, unsigned char* panel,
                             int64_t lane, int64_t index) {
    const auto* block = reinterpret_cast<const unsigned char*>(&source);
    copy_parts<Block>(to, lane, index, [&](int64_t in_panel, int64_t in_block, int bytes) {
        memcpy(panel + in_panel, block + in_block, static_cast<size_t>(bytes));
    });
}

template <class Block>
PLAIT_INLINE void unpack_block(const PackedWeight& from, const unsigned char* panel, int64_t lane,
                               int64_t index, Block& target) {
    auto* block = reinterpret_cast<unsigned char*>(&target);
    copy_parts<Block>(from, lane, index, [&](int64_t in_panel, int64_t in_block, int bytes) {
        memcpy(block + in_block, panel + in_panel, static_cast<size_t>(bytes));
    });
}

}  // namespace plait::cpu
