// TQ1_0: 256 values -1, 0 and 1 with one scale, five digits of base three in a byte. 1.69 bits per
// value.
// A byte is the fraction of 256 that the digits are of 243; its digit n stands before the point of
// byte * 3^(n + 1) / 256, taken modulo 3.
// Layout: block_tq1_0 in ggml-common.h; decoder: dequantize_row_tq1_0 in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockTQ1_0 {
    static constexpr int kElements = 256;
    uint8_t fives[48];  // byte i of the first 32 has values i + 32 n, of the rest 160 + i + 16 n
    uint8_t fours[4];   // 240 + i + 4 n
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

}  // namespace plait
