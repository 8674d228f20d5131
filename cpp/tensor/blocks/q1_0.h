// Q1_0: 128 values, each the scale or its negative. 1.125 bits per value.
//   value[i] = scale * (bit i ? 1 : -1)
// Layout: block_q1_0 in ggml-common.h; decoder: dequantize_row_q1_0 in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ1_0 {
    static constexpr int kElements = 128;
    uint16_t scale;    // f16
    uint8_t bits[16];  // bit j of byte k: value 8 k + j
};
static_assert(sizeof(BlockQ1_0) == 18);

PLAIT_INLINE void expand(const BlockQ1_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 8; ++g) scales[g] = f16_to_f32(block.scale);
    for (int i = 0; i < 128; ++i)
        codes[i] =
            (block.bits[i / 8] >> (i % 8) & 1) != 0 ? kExpandedOffset + 1 : kExpandedOffset - 1;
}

}  // namespace plait
