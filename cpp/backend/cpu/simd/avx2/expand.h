// AVX2, many codes at a time. See expanded_product.h.
#pragma once

#include <string.h>

#include "tensor/blocks/expanded.h"

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE __m128i load16(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
PLAIT_INLINE __m256i load32(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
PLAIT_INLINE void store16(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
PLAIT_INLINE void store32(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }

// Byte 8 i + j of the result is byte i of the word at p.
PLAIT_INLINE __m256i spread_bytes(const uint8_t* p) {
    int word;
    memcpy(&word, p, 4);
    const __m256i byte_of =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    return _mm256_shuffle_epi8(_mm256_set1_epi32(word), byte_of);
}

// Stores 32 values, negated where the bit of `signs` is set, plus the offset.
PLAIT_INLINE void put_signed(__m256i values, const uint8_t* signs, uint8_t* to) {
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(spread_bytes(signs), bit), bit);
    const __m256i result = _mm256_sub_epi8(_mm256_xor_si256(values, negative), negative);
    store32(to, _mm256_add_epi8(result, _mm256_set1_epi8(kExpandedOffset)));
}

// Sets the highest bit of each byte so that its number of set bits is even.
PLAIT_INLINE __m256i even_bytes(__m256i sevens) {
    const char odd = static_cast<char>(0x80);
    const __m256i parity = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, odd, odd, 0, odd, 0, 0, odd, odd, 0, 0, odd, 0, odd, odd, 0));
    const __m256i low = _mm256_and_si256(sevens, _mm256_set1_epi8(15));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(sevens, 4), _mm256_set1_epi8(15));
    return _mm256_or_si256(sevens, _mm256_xor_si256(_mm256_shuffle_epi8(parity, low),
                                                    _mm256_shuffle_epi8(parity, high)));
}

// The signs of eight groups of 32 values: 4 times 7 bits of each word.
PLAIT_INLINE __m256i even_signs(__m256i words) {
    const auto seven = [&](__m256i moved, int mask) {
        return _mm256_and_si256(moved, _mm256_set1_epi32(mask));
    };
    return even_bytes(_mm256_or_si256(
        _mm256_or_si256(seven(words, 0x7f), seven(_mm256_slli_epi32(words, 1), 0x7f << 8)),
        _mm256_or_si256(seven(_mm256_slli_epi32(words, 2), 0x7f << 16),
                        seven(_mm256_slli_epi32(words, 3), 0x7f << 24))));
}

// The nibbles of 16 bytes, the low one of each byte first.
struct Nibbles {
    __m128i first, second;  // of bytes 0 to 7, of bytes 8 to 15

    PLAIT_INLINE_MEMBER explicit Nibbles(__m128i bytes) {
        const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
        first = _mm_unpacklo_epi8(low, high);
        second = _mm_unpackhi_epi8(low, high);
    }
};

// Stores a scale for each of 16 units.
PLAIT_INLINE void put_scales(__m256 first, __m256 second, float* to) {
    _mm256_storeu_ps(to, first);
    _mm256_storeu_ps(to + 8, second);
}
// Stores eight scales of two units each.
PLAIT_INLINE void put_twice(__m256 x, float* to) {
    const __m256 low = _mm256_unpacklo_ps(x, x), high = _mm256_unpackhi_ps(x, x);
    put_scales(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31),
               to);
}

// scale * (x + plus) * times
PLAIT_INLINE __m256 scales_of(uint16_t half, __m256i x, float plus, float times) {
    const __m256 sum = _mm256_add_ps(_mm256_set1_ps(plus), _mm256_cvtepi32_ps(x));
    return _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(half)), sum),
                         _mm256_set1_ps(times));
}
PLAIT_INLINE __m256i bytes_to_words(__m128i bytes) { return _mm256_cvtepu8_epi32(bytes); }
PLAIT_INLINE __m256i second_bytes_to_words(__m128i bytes) {
    return bytes_to_words(_mm_srli_si128(bytes, 8));
}

// Makes the compiler read an array from memory. It would take the elements from the registers that
// were stored there, one by one, which is slower.
template <class T, int n>
PLAIT_INLINE void keep_in_memory(T (&array)[n]) {
    asm("" : "+m"(array));
}

// Numbers of points: 8 low bits and a byte with the bits above them.
PLAIT_INLINE void put_points(__m128i low, __m128i high, uint16_t* to) {
    store16(to, _mm_unpacklo_epi8(low, high));
    store16(to + 8, _mm_unpackhi_epi8(low, high));
}

template <class Grid, class Point>
PLAIT_INLINE __m256i four_points(const Grid& grid, const Point* n) {
    return _mm256_setr_epi64x(static_cast<int64_t>(grid[n[0]]), static_cast<int64_t>(grid[n[1]]),
                              static_cast<int64_t>(grid[n[2]]), static_cast<int64_t>(grid[n[3]]));
}
template <class Grid, class Point>
PLAIT_INLINE __m256i eight_points(const Grid& grid, const Point* n) {
    const auto value = [&](int i) { return static_cast<int>(grid[n[i]]); };
    return _mm256_setr_epi32(value(0), value(1), value(2), value(3), value(4), value(5), value(6),
                             value(7));
}

PLAIT_INLINE void expand_codes(const BlockIQ2_XXS& block, uint8_t* codes, float* scales) {
    const __m256 a = _mm256_castsi256_ps(load32(block.groups));
    const __m256 b = _mm256_castsi256_ps(load32(block.groups + 4));
    const __m256i words =
        _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
    alignas(32) uint8_t signs[32];
    store32(signs, even_signs(words));
    keep_in_memory(signs);
    put_twice(scales_of(block.scale, _mm256_srli_epi32(words, 28), 0.5f, 0.25f), scales);
    for (int g = 0; g < 8; ++g)
        put_signed(four_points(kGridIQ2_XXS, block.groups[g].points), signs + 4 * g,
                   codes + 32 * g);
}

PLAIT_INLINE void put_sixteen_scales(uint16_t half, const uint8_t* nibbles, float* scales) {
    const __m128i x = Nibbles(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(nibbles))).first;
    put_scales(scales_of(half, bytes_to_words(x), 0.5f, 0.25f),
               scales_of(half, second_bytes_to_words(x), 0.5f, 0.25f), scales);
}

PLAIT_INLINE void expand_codes(const BlockIQ2_XS& block, uint8_t* codes, float* scales) {
    const __m256i a = load32(block.points), b = load32(block.points + 16);
    alignas(32) uint16_t points[32];
    store32(points, _mm256_and_si256(a, _mm256_set1_epi16(511)));
    store32(points + 16, _mm256_and_si256(b, _mm256_set1_epi16(511)));
    const __m256i sevens = _mm256_permute4x64_epi64(
        _mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(b, 9)), 0xd8);
    alignas(32) uint8_t signs[32];
    store32(signs, even_bytes(sevens));
    keep_in_memory(signs);
    keep_in_memory(points);
    put_sixteen_scales(block.scale, block.scales, scales);
    for (int g = 0; g < 8; ++g)
        put_signed(four_points(kGridIQ2_XS, points + 4 * g), signs + 4 * g, codes + 32 * g);
}

PLAIT_INLINE void expand_codes(const BlockIQ2_S& block, uint8_t* codes, float* scales) {
    const __m128i mask = _mm_set1_epi8(3);
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.high));
    // Two bits of each byte, by byte and then by bits: 01, 23, 45, 67.
    const __m128i even = _mm_unpacklo_epi8(x, _mm_srli_epi16(x, 2));
    const __m128i odd = _mm_unpacklo_epi8(_mm_srli_epi16(x, 4), _mm_srli_epi16(x, 6));
    alignas(32) uint16_t points[32];
    put_points(load16(block.points), _mm_and_si128(_mm_unpacklo_epi16(even, odd), mask), points);
    put_points(load16(block.points + 16), _mm_and_si128(_mm_unpackhi_epi16(even, odd), mask),
               points + 16);
    keep_in_memory(points);
    put_sixteen_scales(block.scale, block.scales, scales);
    for (int g = 0; g < 8; ++g)
        put_signed(four_points(kGridIQ2_S, points + 4 * g), block.signs + 4 * g, codes + 32 * g);
}

PLAIT_INLINE void expand_codes(const BlockIQ3_XXS& block, uint8_t* codes, float* scales) {
    const __m256i words = load32(block.signs);
    alignas(32) uint8_t signs[32];
    store32(signs, even_signs(words));
    keep_in_memory(signs);
    put_twice(scales_of(block.scale, _mm256_srli_epi32(words, 28), 0.5f, 0.5f), scales);
    for (int g = 0; g < 8; ++g)
        put_signed(eight_points(kGridIQ3_XXS, block.points + 8 * g), signs + 4 * g, codes + 32 * g);
}

PLAIT_INLINE void expand_codes(const BlockIQ3_S& block, uint8_t* codes, float* scales) {
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    alignas(32) uint16_t points[64];
    for (int half = 0; half < 2; ++half) {
        const __m256i is_set =
            _mm256_cmpeq_epi8(_mm256_and_si256(spread_bytes(block.high + 4 * half), bit), bit);
        const __m256i high = _mm256_and_si256(is_set, _mm256_set1_epi8(1));
        put_points(load16(block.points + 32 * half), _mm256_castsi256_si128(high),
                   points + 32 * half);
        put_points(load16(block.points + 32 * half + 16), _mm256_extracti128_si256(high, 1),
                   points + 32 * half + 16);
    }
    keep_in_memory(points);
    int nibbles;
    memcpy(&nibbles, block.scales, 4);
    const __m256i scale4 = bytes_to_words(Nibbles(_mm_cvtsi32_si128(nibbles)).first);
    const __m256i odd = _mm256_or_si256(_mm256_slli_epi32(scale4, 1), _mm256_set1_epi32(1));
    put_twice(scales_of(block.scale, odd, 0.0f, 1.0f), scales);
    for (int g = 0; g < 8; ++g)
        put_signed(eight_points(kGridIQ3_S, points + 8 * g), block.signs + 4 * g, codes + 32 * g);
}

PLAIT_INLINE void expand_codes(const BlockIQ1_S& block, uint8_t* codes, float* scales) {
    const __m128i high = load16(block.high);
    alignas(32) uint32_t points[32];
    for (int i = 0; i < 32; i += 8) {  // two groups of four
        int two;
        memcpy(&two, block.high + i / 4, 4);
        const __m256i each = _mm256_shuffle_epi8(
            _mm256_set1_epi32(two), _mm256_set_epi64x(static_cast<int64_t>(0xffff0302ffff0302),
                                                      static_cast<int64_t>(0xffff0302ffff0302),
                                                      static_cast<int64_t>(0xffff0100ffff0100),
                                                      static_cast<int64_t>(0xffff0100ffff0100)));
        const __m256i bits =
            _mm256_and_si256(_mm256_srlv_epi32(each, _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9)),
                             _mm256_set1_epi32(7));
        const __m256i low =
            bytes_to_words(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block.points + i)));
        store32(points + i, _mm256_or_si256(_mm256_slli_epi32(bits, 8), low));
    }
    const __m256i scale3 =
        _mm256_and_si256(_mm256_cvtepu16_epi32(_mm_srli_epi16(high, 12)), _mm256_set1_epi32(7));
    const __m256i odd = _mm256_or_si256(_mm256_slli_epi32(scale3, 1), _mm256_set1_epi32(1));
    put_twice(scales_of(block.scale, odd, 0.0f, 0.125f), scales);
    alignas(16) int16_t shifts[8];  // 1 or -1
    store16(shifts, _mm_or_si128(_mm_srai_epi16(high, 15), _mm_set1_epi16(1)));
    for (int g = 0; g < 8; ++g)
        store32(codes + 32 * g, _mm256_add_epi8(four_points(kGridIQ1_S, points + 4 * g),
                                                _mm256_set1_epi8(static_cast<char>(shifts[g]))));
}

PLAIT_INLINE void expand_codes(const BlockIQ1_M& block, uint8_t* codes, float* scales) {
    const Nibbles high(load16(block.high));
    alignas(32) uint16_t points[32];
    alignas(32) uint8_t shifts[32];  // 1 or -1
    const auto put = [&](int i, __m128i nibbles) {
        put_points(load16(block.points + i), _mm_and_si128(nibbles, _mm_set1_epi8(7)), points + i);
        const __m128i down = _mm_cmpgt_epi8(nibbles, _mm_set1_epi8(7));
        store16(shifts + i, _mm_or_si128(down, _mm_set1_epi8(1)));
    };
    put(0, high.first);
    put(16, high.second);
    keep_in_memory(points);
    keep_in_memory(shifts);
    uint64_t four;
    memcpy(&four, block.scales, 8);
    const auto half = static_cast<uint16_t>((four >> 12 & 15) | (four >> 24 & 0xf0) |
                                            (four >> 36 & 0xf00) | (four >> 48 & 0xf000));
    const __m256i each =
        _mm256_shuffle_epi8(_mm256_set1_epi64x(static_cast<int64_t>(four)),
                            _mm256_set_epi64x(0x0706070607060706, 0x0504050405040504,
                                              0x0302030203020302, 0x0100010001000100));
    const __m256i moved =  // the three bits of each scale are bits 9 to 11
        _mm256_mullo_epi16(each, _mm256_set1_epi64x(0x0001000800400200));
    const __m256i scale3 = _mm256_and_si256(_mm256_srli_epi16(moved, 9), _mm256_set1_epi16(7));
    const __m256i odd = _mm256_or_si256(_mm256_slli_epi16(scale3, 1), _mm256_set1_epi16(1));
    const auto scale = [&](__m128i words) {
        return scales_of(half, _mm256_cvtepu16_epi32(words), 0.0f, 0.125f);
    };
    put_scales(scale(_mm256_castsi256_si128(odd)), scale(_mm256_extracti128_si256(odd, 1)), scales);
    for (int g = 0; g < 8; ++g)
        store32(codes + 32 * g, _mm256_add_epi8(four_points(kGridIQ1_S, points + 4 * g),
                                                spread_bytes(shifts + 4 * g)));
}

PLAIT_INLINE void expand_codes(const BlockTQ1_0& block, uint8_t* codes, float* scales) {
    const __m256 scale = _mm256_set1_ps(_cvtsh_ss(block.scale));
    put_scales(scale, scale, scales);
    // Returns the highest digits, as codes, and moves the next ones up.
    const auto next = [](__m256i& left) {
        const auto is_at_least = [&](int x) {
            const __m256i limit = _mm256_set1_epi8(static_cast<char>(x));
            return _mm256_cmpeq_epi8(_mm256_max_epu8(left, limit), left);
        };
        // floor(3 * left / 256) is the number of these that hold, each of which counts as -1.
        const __m256i digits = _mm256_add_epi8(is_at_least(86), is_at_least(171));
        left = _mm256_add_epi8(left, _mm256_add_epi8(left, left));
        return _mm256_sub_epi8(_mm256_set1_epi8(kExpandedOffset - 1), digits);
    };
    __m256i left = load32(block.fives);
    for (int d = 0; d < 5; ++d) store32(codes + 32 * d, next(left));
    int fours;
    memcpy(&fours, block.fours, 4);
    left = _mm256_set_m128i(_mm_cvtsi32_si128(fours), load16(block.fives + 32));
    for (int d = 0; d < 5; ++d) {
        const __m256i digits = next(left);
        store16(codes + 160 + 16 * d, _mm256_castsi256_si128(digits));
        fours = _mm_cvtsi128_si32(_mm256_extracti128_si256(digits, 1));
        if (d < 4) memcpy(codes + 240 + 4 * d, &fours, 4);
    }
}

using ExpandedCodes = LaneCodes;

class FourBlocks {
public:
    PLAIT_INLINE_MEMBER FourBlocks(const int8_t* a, int64_t stride, const float* offsets)
        : _first(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(offsets))),
          _second(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(offsets + 4))) {
        for (int i = 0; i < 4; ++i)
            _a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + stride * i));
    }

    template <int kUnit>
    PLAIT_INLINE_MEMBER void dot(const LaneCodes& lanes, int64_t b, F32 (&to)[4]) const {
        __m256 t[4];  // t[i]: of four blocks, for lane i and then for lane i + 4
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) t[i] = two<kUnit>(lanes, i, i + 4, b);
        const __m256 a = _mm256_unpacklo_ps(t[0], t[1]), c = _mm256_unpacklo_ps(t[2], t[3]);
        const __m256 d = _mm256_unpackhi_ps(t[0], t[1]), e = _mm256_unpackhi_ps(t[2], t[3]);
        to[0] = {_mm256_shuffle_ps(a, c, 0x44)};
        to[1] = {_mm256_shuffle_ps(a, c, 0xee)};
        to[2] = {_mm256_shuffle_ps(d, e, 0x44)};
        to[3] = {_mm256_shuffle_ps(d, e, 0xee)};
    }

private:
    PLAIT_INLINE_MEMBER __m256i fours(const uint8_t* codes, int i) const {
        const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * i));
        return _mm256_madd_epi16(_mm256_maddubs_epi16(c, _a[i]), _mm256_set1_epi16(1));
    }
    // The sums of the first units of four blocks, then of the second units: additions work within
    // halves of a register.
    PLAIT_INLINE_MEMBER __m256i units(const uint8_t* codes) const {
        return _mm256_hadd_epi32(_mm256_hadd_epi32(fours(codes, 0), fours(codes, 1)),
                                 _mm256_hadd_epi32(fours(codes, 2), fours(codes, 3)));
    }
    template <int kUnit>
    PLAIT_INLINE_MEMBER __m256 two(const LaneCodes& lanes, int lane, int other, int64_t b) const {
        const __m256i x = units(lanes.codes[lane] + 32 * b);
        const __m256i y = units(lanes.codes[other] + 32 * b);
        const __m256 s = _mm256_loadu_ps(lanes.scales[lane] + 2 * b);
        const __m256 z = _mm256_loadu_ps(lanes.scales[other] + 2 * b);
        const __m256 low = _mm256_permute2f128_ps(s, z, 0x20);
        const __m256 high = _mm256_permute2f128_ps(s, z, 0x31);
        const __m256i first_sums = _mm256_permute2x128_si256(x, y, 0x20);
        const __m256i second_sums = _mm256_permute2x128_si256(x, y, 0x31);
        if constexpr (kUnit == 32) {
            const __m256 all = _mm256_cvtepi32_ps(_mm256_add_epi32(first_sums, second_sums));
            return _mm256_mul_ps(_mm256_shuffle_ps(low, high, 0x88),
                                 _mm256_sub_ps(all, _mm256_add_ps(_first, _second)));
        }
        const __m256 first = _mm256_sub_ps(_mm256_cvtepi32_ps(first_sums), _first);
        const __m256 second = _mm256_sub_ps(_mm256_cvtepi32_ps(second_sums), _second);
        return _mm256_fmadd_ps(_mm256_shuffle_ps(low, high, 0xdd), second,
                               _mm256_mul_ps(_mm256_shuffle_ps(low, high, 0x88), first));
    }

    __m256i _a[4];
    __m256 _first, _second;  // offsets, twice
};

}  // namespace plait::cpu::PLAIT_ISA
