// The lattices of the IQ types: a point has eight or four values of one byte each.
// Tables: iq2xxs_grid etc. in ggml-common.h (ggml).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"

namespace plait {

template <typename Word, size_t kPoints>
struct Grid {
    Word words[kPoints];
    PLAIT_INLINE_MEMBER constexpr Word operator[](int point) const { return words[point]; }
};

extern const Grid<uint64_t, 256> kGridIQ2_XXS;
extern const Grid<uint64_t, 512> kGridIQ2_XS;
extern const Grid<uint64_t, 1024> kGridIQ2_S;
extern const Grid<uint32_t, 256> kGridIQ3_XXS;
extern const Grid<uint32_t, 512> kGridIQ3_S;
extern const Grid<uint64_t, 2048> kGridIQ1_S;  // -8, 0, 8 as codes

// The values that occur, by their numbers.
inline constexpr uint8_t kValuesIQ2[4] = {8, 25, 43};  // three
inline constexpr uint8_t kValuesIQ3_XXS[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr uint8_t kValuesIQ3_S[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// The same points, with the number of each value in place of the value. A number has two bits in
// points of eight values, and three in points of four. first[point] has the first half of a point's
// numbers, from the lowest bits on, and second[point] the other half.
template <size_t kPoints>
struct alignas(64) PointLevels {
    uint8_t first[kPoints], second[kPoints];
};

extern const PointLevels<256> kLevelsIQ2_XXS;
extern const PointLevels<512> kLevelsIQ2_XS;
extern const PointLevels<1024> kLevelsIQ2_S;
extern const PointLevels<256> kLevelsIQ3_XXS;
extern const PointLevels<512> kLevelsIQ3_S;
extern const PointLevels<2048> kLevelsIQ1_S;

// expand() adds this to each value; values are in [-62, 62].
constexpr int kExpandedOffset = 64;

// Eight codes are expanded at once, one in each byte of a word, the first in the lowest.
constexpr uint64_t kEachByte = 0x0101010101010101;
PLAIT_INLINE void put_codes(uint64_t eight, uint8_t* to) { __builtin_memcpy(to, &eight, 8); }

// Expands 4 times 7 sign bits to 4 times 8. The eighth bit of each byte makes its number of set
// bits even.
PLAIT_INLINE uint32_t even_signs(uint32_t bits) {
    uint32_t signs = (bits & 0x7f) | (bits & 0x7f << 7) << 1 | (bits & 0x7f << 14) << 2 |
                     (bits & 0x7f << 21) << 3;
    uint32_t parity = signs ^ signs >> 4;  // the parity of each byte ends up in its lowest bit
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return signs | (parity & 0x01010101) << 7;
}

// Stores 32 codes: the bytes of a, b, c and d, negated where the bit of `signs` is set, plus the
// offset.
PLAIT_INLINE void put_signed(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t signs,
                             uint8_t* to) {
    const uint64_t values[4] = {a, b, c, d};
    for (int i = 0; i < 32; ++i) {
        const int value = static_cast<int>(values[i / 8] >> (8 * (i % 8)) & 255);
        to[i] = static_cast<uint8_t>(kExpandedOffset + ((signs >> i & 1) != 0 ? -value : value));
    }
}

}  // namespace plait
