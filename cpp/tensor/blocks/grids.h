// The lattices that the IQ types pick their values from: a number stands for eight or four bytes.
// Tables: iq2xxs_grid and its like in ggml-common.h (ggml).
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

extern const Grid<uint64_t, 256> kGridIQ2_XXS;  // 8, 25, 43
extern const Grid<uint64_t, 512> kGridIQ2_XS;
extern const Grid<uint64_t, 1024> kGridIQ2_S;
extern const Grid<uint32_t, 256> kGridIQ3_XXS;  // 4, 12, 20, 28, 36, 44, 52, 62
extern const Grid<uint32_t, 512> kGridIQ3_S;    // 1, 3, ... 15
extern const Grid<uint64_t, 2048> kGridIQ1_S;   // -8, 0, 8 with 128 added

constexpr uint64_t kEveryByte = 0x0101010101010101;

// The eighth of eight signs is stored nowhere: it makes their number even.
PLAIT_INLINE uint8_t even_signs(uint32_t seven) {
    return static_cast<uint8_t>(seven | (__builtin_popcount(seven) & 1u) << 7);
}

// Byte i of `values`, at least 1, negated where bit i of `signs` is set; to[i] gets it.
PLAIT_INLINE void put_signed(uint64_t values, uint8_t signs, int8_t* to) {
    const uint64_t bit = signs * kEveryByte & 0x8040201008040201;  // in byte i, bit i
    const uint64_t one = (bit + 0x7f * kEveryByte) >> 7 & kEveryByte;
    const uint64_t result = (values ^ one * 0xff) + one;  // a byte of at most 254, and 1: no carry
    __builtin_memcpy(to, &result, 8);
}

}  // namespace plait
