// AVX-512 with VBMI: a block of every lane is expanded at once, straight to the form of a panel. See
// expanded_product.h.
//
// The lattices are looked up in registers. A point is two bytes with the numbers of its levels
// (kLevelsIQ2_XXS and others), and vpermi2b looks 64 points up in 128 bytes of a table. Every four
// points in the lanes then give four registers of codes or eight: vpmultishiftqb moves the number of
// each value and its sign to the low bits of a byte, and vpermb replaces them by the code.
#pragma once

#include <string.h>

#include "tensor/blocks/expanded.h"

namespace plait::cpu::PLAIT_ISA {

// Four bytes of every lane.
using Quads = __m512i;

// The parts of a block, of all lanes (packed.h).
template <class Block>
PLAIT_INLINE __m512 scale_of(PackedBlocks<Block> blocks) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks.data)));
}
// The words of a block after its scale, if it has one.
struct Words {
    const unsigned char* data;

    template <class Block>
    PLAIT_INLINE_MEMBER explicit Words(PackedBlocks<Block> blocks)
        : data(blocks.data + sizeof(Block) % 4 * 16) {}
    PLAIT_INLINE_MEMBER Quads operator[](int i) const { return _mm512_loadu_si512(data + 64 * i); }
};

// The bits of each lane from bit `first` on, or n of them.
PLAIT_INLINE Quads bits_from(Quads x, int first) {
    return _mm512_srli_epi32(x, static_cast<unsigned>(first));
}
PLAIT_INLINE Quads bits_at(Quads x, int first, int n) {
    return _mm512_and_si512(bits_from(x, first), _mm512_set1_epi32((1 << n) - 1));
}

PLAIT_INLINE Quads all_bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }

// ---- Codes ----

// Where the bytes of a lane are taken from: byte j is the eight bits of the lane from bit bits[j] on.
// If bits[j] is -n, bit 0 of the lane becomes bit n of the byte, and the n bits below have no meaning.
struct BitPlaces {
    int bits[4];

    PLAIT_INLINE_MEMBER static constexpr BitPlaces from(int first, int step) {
        return {{first, first + step, first + 2 * step, first + 3 * step}};
    }
    PLAIT_INLINE_MEMBER constexpr int64_t control() const {
        uint64_t all = 0;
        for (int j = 0; j < 8; ++j)
            all |= static_cast<uint64_t>((bits[j % 4] + 32 * (j / 4)) & 63) << (8 * j);
        return static_cast<int64_t>(all);
    }
};
PLAIT_INLINE Quads bytes_at(Quads x, BitPlaces places) {
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(places.control()), x);
}

// The code of each level without and with its sign, by the low bits of an index: kBits bits of the
// level, then the sign. The other bits of an index have no effect.
struct alignas(64) LevelCodes {
    uint8_t of[64];

    // Levels and their negatives.
    template <int n>
    constexpr LevelCodes(const uint8_t (&levels)[n], int offset) : of{} {
        for (int i = 0; i < 64; ++i) {
            const int level = levels[i % n];
            of[i] = static_cast<uint8_t>(offset + ((i / n) % 2 != 0 ? -level : level));
        }
    }
    // -8, 0 and 8, plus 1 or minus 1.
    constexpr explicit LevelCodes(int offset) : of{} {
        for (int i = 0; i < 64; ++i)
            of[i] = static_cast<uint8_t>(offset + 8 * (i % 4) - 8 + ((i / 4) % 2 != 0 ? -1 : 1));
    }
};

// Codes of levels whose numbers are the low kBits bits of each byte, the rest of `signs`.
template <int kBits>
PLAIT_INLINE Quads codes_of(Quads numbers, Quads signs, const LevelCodes& codes) {
    constexpr int kChoose = 0xca;  // for each bit: of the first operand ? second : third
    const Quads index =
        _mm512_ternarylogic_epi32(all_bytes((1 << kBits) - 1), numbers, signs, kChoose);
    return _mm512_permutexvar_epi8(index, _mm512_load_si512(codes.of));
}

// The bytes at `index` of a table of 256 << kMore bytes. Bits 0 to kMore - 1 of a byte of `high` are
// bits 8 and higher of the index.
template <int kMore>
PLAIT_INLINE Quads look_up(const uint8_t* table, Quads index, Quads high) {
    if constexpr (kMore > 0) {
        const __mmask64 upper = _mm512_test_epi8_mask(high, all_bytes(1 << (kMore - 1)));
        return _mm512_mask_blend_epi8(upper, look_up<kMore - 1>(table, index, high),
                                      look_up<kMore - 1>(table + (128 << kMore), index, high));
    } else {
        const auto of_half = [&](const uint8_t* half) {
            return _mm512_permutex2var_epi8(_mm512_load_si512(half), index,
                                            _mm512_load_si512(half + 64));
        };
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), of_half(table),
                                      of_half(table + 128));
    }
}

// Points of four values or eight: the numbers of the levels of both halves.
struct Points {
    Quads first, second;

    template <size_t n>
    PLAIT_INLINE_MEMBER static Points of(const PointLevels<n>& table, Quads index,
                                         Quads high = _mm512_setzero_si512()) {
        constexpr int kMore = n == 256 ? 0 : n == 512 ? 1 : n == 1024 ? 2 : 3;
        return {look_up<kMore>(table.first, index, high),
                look_up<kMore>(table.second, index, high)};
    }
};

PLAIT_INLINE void put(Quads codes, unsigned char*& to) {
    _mm512_storeu_si512(to, codes);
    to += 64;
}

// Stores the 32 codes of four points of eight values. place(p, half) are the places of the signs.
template <class Place>
PLAIT_INLINE void put_eights(const Points& points, Quads signs, const LevelCodes& codes,
                             Place place, unsigned char*& to) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
        const BitPlaces numbers = BitPlaces::from(8 * p, 2);
        put(codes_of<2>(bytes_at(points.first, numbers), bytes_at(signs, place(p, 0)), codes), to);
        put(codes_of<2>(bytes_at(points.second, numbers), bytes_at(signs, place(p, 1)), codes), to);
    }
}
PLAIT_INLINE void put_signed_eights(const Points& points, Quads signs, const LevelCodes& codes,
                                    unsigned char*& to) {
    put_eights(
        points, signs, codes,
        [](int p, int half) { return BitPlaces::from(8 * p + 4 * half - 2, 1); }, to);
}

// Stores the 16 codes of four points of four values; their signs are the lowest bits.
PLAIT_INLINE void put_signed_fours(const Points& points, Quads signs, const LevelCodes& codes,
                                   unsigned char*& to) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
        const BitPlaces halves = {{8 * p, 8 * p + 3, 8 * p, 8 * p + 3}};
        const Quads numbers = _mm512_mask_blend_epi16(0xaaaaaaaa, bytes_at(points.first, halves),
                                                      bytes_at(points.second, halves));
        put(codes_of<3>(numbers, bytes_at(signs, BitPlaces::from(4 * p - 3, 1)), codes), to);
    }
}

// Sets the highest bit of each byte so that its number of set bits is even.
PLAIT_INLINE Quads even_bytes(Quads sevens) {
    const char odd = static_cast<char>(0x80);
    const Quads parity = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0));
    const Quads nibble =
        _mm512_and_si512(_mm512_xor_si512(sevens, _mm512_srli_epi16(sevens, 4)), all_bytes(15));
    return _mm512_or_si512(sevens, _mm512_shuffle_epi8(parity, nibble));
}
// Four times 7 bits of each lane.
PLAIT_INLINE Quads even_signs(Quads words) {
    return even_bytes(_mm512_and_si512(bytes_at(words, BitPlaces::from(0, 7)), all_bytes(0x7f)));
}

// ---- Scales ----

// scale * (x + plus) * times
PLAIT_INLINE __m512 scaled(__m512 scale, Quads x, float plus, float times) {
    const __m512 sum = _mm512_add_ps(_mm512_set1_ps(plus), _mm512_cvtepi32_ps(x));
    return _mm512_mul_ps(_mm512_mul_ps(scale, sum), _mm512_set1_ps(times));
}
// scale * (2 * x + 1) * times
PLAIT_INLINE __m512 scaled_odd(__m512 scale, Quads x, float times) {
    const Quads odd = _mm512_or_si512(_mm512_slli_epi32(x, 1), _mm512_set1_epi32(1));
    return scaled(scale, odd, 0.0f, times);
}
PLAIT_INLINE void put(__m512 scale, float*& to) {
    _mm512_storeu_ps(to, scale);
    to += 16;
}
// Nibbles of two words: scale * (nibble + 1/2) / 4
PLAIT_INLINE void put_sixteen_scales(__m512 scale, Quads first, Quads second, float*& to) {
    for (int i = 0; i < 8; ++i) put(scaled(scale, bits_at(first, 4 * i, 4), 0.5f, 0.25f), to);
    for (int i = 0; i < 8; ++i) put(scaled(scale, bits_at(second, 4 * i, 4), 0.5f, 0.25f), to);
}

// ---- The types. expand_block(blocks, codes, scales) expands a block of every lane. ----

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ2_XXS> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kValuesIQ2, kPanelOffset<BlockIQ2_XXS>);
    const __m512 scale = scale_of(blocks);
    const Words groups(blocks);
    for (int g = 0; g < 8; ++g) {
        const Quads points = groups[2 * g], signs = groups[2 * g + 1];
        put(scaled(scale, bits_from(signs, 28), 0.5f, 0.25f), scales);
        put_signed_eights(Points::of(kLevelsIQ2_XXS, points), even_signs(signs), kCodes, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ2_XS> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kValuesIQ2, kPanelOffset<BlockIQ2_XS>);
    const Words points(blocks);  // two in each word, then two words of scales
    put_sixteen_scales(scale_of(blocks), points[16], points[17], scales);
    // Bytes 0 and 2 of a lane of two registers.
    const Quads lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const Quads even = _mm512_add_epi8(_mm512_set1_epi32(0x42400200),
                                       _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x04040404)));
    const Quads odd = _mm512_add_epi8(even, all_bytes(1));
    for (int g = 0; g < 8; ++g) {
        const Quads low = _mm512_permutex2var_epi8(points[2 * g], even, points[2 * g + 1]);
        const Quads high = _mm512_permutex2var_epi8(points[2 * g], odd, points[2 * g + 1]);
        const Quads sevens = _mm512_and_si512(_mm512_srli_epi16(high, 1), all_bytes(0x7f));
        put_signed_eights(Points::of(kLevelsIQ2_XS, low, high), even_bytes(sevens), kCodes, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ2_S> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kValuesIQ2, kPanelOffset<BlockIQ2_S>);
    const Words words(blocks);  // eight of points, eight of signs, two of high, two of scales
    put_sixteen_scales(scale_of(blocks), words[18], words[19], scales);
    for (int g = 0; g < 8; ++g) {
        const Quads high =
            bytes_at(bits_from(words[16 + g / 4], 8 * (g % 4)), BitPlaces::from(0, 2));
        put_signed_eights(Points::of(kLevelsIQ2_S, words[g], high), words[8 + g], kCodes, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ3_XXS> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kValuesIQ3_XXS, kPanelOffset<BlockIQ3_XXS>);
    const __m512 scale = scale_of(blocks);
    const Words words(blocks);  // 16 of points, eight of signs
    for (int g = 0; g < 8; ++g) {
        const Quads bits = words[16 + g], signs = even_signs(bits);
        put(scaled(scale, bits_from(bits, 28), 0.5f, 0.5f), scales);
        for (int i = 0; i < 2; ++i)
            put_signed_fours(Points::of(kLevelsIQ3_XXS, words[2 * g + i]), bits_from(signs, 16 * i),
                             kCodes, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ3_S> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kValuesIQ3_S, kPanelOffset<BlockIQ3_S>);
    const __m512 scale = scale_of(blocks);
    const Words words(blocks);  // 16 of points, two of high, eight of signs, one of scales
    for (int g = 0; g < 8; ++g) {
        put(scaled_odd(scale, bits_at(words[26], 4 * g, 4), 1.0f), scales);
        for (int i = 0; i < 2; ++i) {
            const Quads high =
                bytes_at(bits_from(words[16 + g / 4], 8 * (g % 4) + 4 * i), BitPlaces::from(0, 1));
            put_signed_fours(Points::of(kLevelsIQ3_S, words[2 * g + i], high),
                             bits_from(words[18 + g], 16 * i), kCodes, codes);
        }
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ1_S> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kPanelOffset<BlockIQ1_S>);
    const __m512 scale = scale_of(blocks);
    const Words words(blocks);  // eight of points, four of high
    for (int g = 0; g < 8; ++g) {
        const Quads word = bits_from(words[8 + g / 2], 16 * (g % 2));
        put(scaled_odd(scale, bits_at(word, 12, 3), 0.125f), scales);
        const Quads high = bytes_at(word, BitPlaces::from(0, 3));
        put_eights(
            Points::of(kLevelsIQ1_S, words[g], high), word, kCodes,
            [](int, int) { return BitPlaces::from(15 - 2, 0); }, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockIQ1_M> blocks, unsigned char* codes,
                               float* scales) {
    static constexpr LevelCodes kCodes(kPanelOffset<BlockIQ1_M>);
    const Words words(blocks);        // eight of points, four of high, two of scales
    const auto nibble = [&](int i) {  // of the f16 scale, at its place
        return _mm512_slli_epi32(bits_at(words[12 + i / 2], 12 + 16 * (i % 2), 4),
                                 static_cast<unsigned>(4 * i));
    };
    const Quads half = _mm512_or_si512(_mm512_or_si512(nibble(0), nibble(1)),
                                       _mm512_or_si512(nibble(2), nibble(3)));
    const __m512 scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(half));
    for (int u = 0; u < 16; ++u) {
        const Quads scale3 = bits_at(words[12 + u / 8], 16 * (u / 4 % 2) + 3 * (u % 4), 3);
        put(scaled_odd(scale, scale3, 0.125f), scales);
    }
    for (int g = 0; g < 8; ++g) {
        const Quads word = bits_from(words[8 + g / 2], 16 * (g % 2));
        const Quads high = bytes_at(word, BitPlaces::from(0, 4));
        put_eights(
            Points::of(kLevelsIQ1_S, words[g], high), word, kCodes,
            [](int p, int) { return BitPlaces::from(4 * p + 3 - 2, 0); }, codes);
    }
}

PLAIT_INLINE void expand_block(PackedBlocks<BlockTQ1_0> blocks, unsigned char* codes,
                               float* scales) {
    const __m512 scale = scale_of(blocks);
    for (int u = 0; u < 8; ++u) put(scale, scales);
    const Words words(blocks);
    // Stores `digits` digits of `n` words from `first` on, the first of them from column 4 * begin on.
    const auto put_digits = [&](int first, int n, int digits, int begin) {
        for (int i = 0; i < n; ++i) {
            Quads left = words[first + i];
            for (int d = 0; d < digits; ++d) {
                // floor(3 * left / 256) is the number of these that hold.
                const __mmask64 one = _mm512_cmpge_epu8_mask(left, all_bytes(86));
                const __mmask64 two = _mm512_cmpge_epu8_mask(left, all_bytes(171));
                constexpr int kOffset = kPanelOffset<BlockTQ1_0>;
                Quads code = _mm512_mask_mov_epi8(all_bytes(kOffset - 1), one, all_bytes(kOffset));
                code = _mm512_mask_mov_epi8(code, two, all_bytes(kOffset + 1));
                _mm512_storeu_si512(codes + 64 * (begin + n * d + i), code);
                left = _mm512_add_epi8(left, _mm512_add_epi8(left, left));
            }
        }
    };
    put_digits(0, 8, 5, 0);
    put_digits(8, 4, 5, 40);
    put_digits(12, 1, 4, 60);
}

// ---- Products of a few rows ----

// 256 columns of all lanes, in the form of a panel.
struct ExpandedCodes {
    static constexpr int kColumns = 256;
    template <class Block>
    static constexpr int kOffset = kPanelOffset<Block>;
    alignas(64) unsigned char codes[kColumns * 16];
    alignas(64) float scales[kColumns / 16 * 16];

    template <class Block>
    PLAIT_INLINE_MEMBER void expand(const unsigned char* blocks, int64_t columns) {
        for (int64_t k = 0; k < columns; k += Block::kElements)
            expand_block(PackedBlocks<Block>{blocks + k / Block::kElements * (16 * sizeof(Block))},
                         codes + 16 * k, scales + k / ExpandedValues<Block>::kUnit * 16);
    }
};

class FourBlocks {
public:
    PLAIT_INLINE_MEMBER FourBlocks(const int8_t* a, int64_t stride, const float* offsets)
        : _a(a), _stride(stride), _offsets(offsets) {}

    template <int kUnit>
    PLAIT_INLINE_MEMBER void dot(const ExpandedCodes& x, int64_t b, F32 (&to)[4]) const {
        for (int i = 0; i < 4; ++i) {
            const unsigned char* codes = x.codes + 32 * 16 * (b + i);
            const float* scales = x.scales + 32 / kUnit * 16 * (b + i);
            const Quads first = sums(codes, i, 0), second = sums(codes, i, 4);
            if constexpr (kUnit == 32) {
                const F32 offset = F32::set(_offsets[i] + _offsets[4 + i]);
                to[i] = F32::load(scales) * (floats(_mm512_add_epi32(first, second)) - offset);
            } else {
                const F32 low = floats(first) - F32::set(_offsets[i]);
                const F32 high = floats(second) - F32::set(_offsets[4 + i]);
                to[i] = fma(F32::load(scales + 16), high, F32::load(scales) * low);
            }
        }
    }

private:
    // Of four groups of four columns.
    PLAIT_INLINE_MEMBER Quads sums(const unsigned char* codes, int i, int first) const {
        Quads sum = _mm512_setzero_si512();
        for (int group = first; group < first + 4; ++group)
            sum = _mm512_dpbusd_epi32(sum, _mm512_load_si512(codes + 64 * group),
                                      Bytes::four(_a + _stride * i, group).v);
        return sum;
    }
    PLAIT_INLINE_MEMBER static F32 floats(Quads x) { return {_mm512_cvtepi32_ps(x)}; }

    const int8_t* _a;
    int64_t _stride;
    const float* _offsets;
};

}  // namespace plait::cpu::PLAIT_ISA
