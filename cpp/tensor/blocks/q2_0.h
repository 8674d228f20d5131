// Q2_0: 64 values -1, 0, 1 and 2 with one scale, two bits each. 2.25 bits per value.
//   value = scale * (bits - 1)
// Layout: block_q2_0 in ggml-common.h; decoder: dequantize_row_q2_0 in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

struct [[gnu::packed]] BlockQ2_0 {
    static constexpr int kElements = 64;
    uint16_t scale;      // f16
    uint8_t quants[16];  // bits [2 k, 2 k + 2) of byte j: value 4 j + k
};
static_assert(sizeof(BlockQ2_0) == 18);

PLAIT_INLINE void expand(const BlockQ2_0& block, uint8_t* codes, float* scales) {
    for (int g = 0; g < 4; ++g) scales[g] = f16_to_f32(block.scale);
    for (int i = 0; i < 64; ++i)
        codes[i] =
            static_cast<uint8_t>((block.quants[i / 4] >> (2 * (i % 4)) & 3) + kExpandedOffset - 1);
}

}  // namespace plait
