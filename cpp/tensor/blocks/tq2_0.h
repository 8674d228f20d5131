// TQ2_0: 256 values -1, 0 and 1 (and 2) with one scale, two bits each. 2.06 bits per value.
//   value = scale * (bits - 1)
// Layout: block_tq2_0 in ggml-common.h; decoder: dequantize_row_tq2_0 in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/grids.h"
#include "tensor/half.h"

namespace plait {

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
