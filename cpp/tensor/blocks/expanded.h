// Block types of few bits, most of them numbers of a lattice: nothing multiplies them as they are.
// expand(block, codes, scales) gives bytes, and a scale for every 16 of them,
//   value[i] = scales[i / 16] * (codes[i] - kExpandedOffset)
#pragma once

#include "tensor/blocks/iq1_m.h"
#include "tensor/blocks/iq1_s.h"
#include "tensor/blocks/iq2_s.h"
#include "tensor/blocks/iq2_xs.h"
#include "tensor/blocks/iq2_xxs.h"
#include "tensor/blocks/iq3_s.h"
#include "tensor/blocks/iq3_xxs.h"
#include "tensor/blocks/nvfp4.h"
#include "tensor/blocks/q1_0.h"
#include "tensor/blocks/q2_0.h"
#include "tensor/blocks/tq1_0.h"
#include "tensor/blocks/tq2_0.h"

// Every one of them: X(DType, Block).
#define PLAIT_EXPANDED_BLOCKS(X) \
    X(iq2_xxs, BlockIQ2_XXS)     \
    X(iq2_xs, BlockIQ2_XS)       \
    X(iq2_s, BlockIQ2_S)         \
    X(iq3_xxs, BlockIQ3_XXS)     \
    X(iq3_s, BlockIQ3_S)         \
    X(iq1_s, BlockIQ1_S)         \
    X(iq1_m, BlockIQ1_M)         \
    X(tq1_0, BlockTQ1_0)         \
    X(tq2_0, BlockTQ2_0)         \
    X(nvfp4, BlockNVFP4)         \
    X(q1_0, BlockQ1_0)           \
    X(q2_0, BlockQ2_0)

namespace plait {

template <class Block>
PLAIT_INLINE void decode_expanded(const Block& block, float* out) {
    uint8_t codes[Block::kElements];
    float scales[Block::kElements / 16];
    expand(block, codes, scales);
    for (int i = 0; i < Block::kElements; ++i)
        out[i] = scales[i / 16] * static_cast<float>(codes[i] - kExpandedOffset);
}

}  // namespace plait
