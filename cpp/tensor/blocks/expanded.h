// Block types of few bits. expand(block, codes, scales) converts a block to 8-bit codes with a scale
// for every 16 codes:
//   value[i] = scales[i / 16] * (codes[i] - kExpandedOffset)
// A Vulkan device stores all of these types in this form. On a CPU, a product expands weights of the
// types of PLAIT_IRREGULAR_BLOCKS. Types of PLAIT_LOW_BIT_BLOCKS are multiplied without being expanded.
#pragma once

#include "tensor/blocks/float4.h"
#include "tensor/blocks/lattice.h"
#include "tensor/blocks/low_bit.h"

// Calls X(DType, Block) for each type whose codes have a fixed number of bits.
#define PLAIT_LOW_BIT_BLOCKS(X) \
    X(tq2_0, BlockTQ2_0)        \
    X(nvfp4, BlockNVFP4)        \
    X(q1_0, BlockQ1_0)          \
    X(q2_0, BlockQ2_0)

// The same for the others.
#define PLAIT_IRREGULAR_BLOCKS(X) \
    X(iq2_xxs, BlockIQ2_XXS)      \
    X(iq2_xs, BlockIQ2_XS)        \
    X(iq2_s, BlockIQ2_S)          \
    X(iq3_xxs, BlockIQ3_XXS)      \
    X(iq3_s, BlockIQ3_S)          \
    X(iq1_s, BlockIQ1_S)          \
    X(iq1_m, BlockIQ1_M)          \
    X(tq1_0, BlockTQ1_0)

#define PLAIT_EXPANDED_BLOCKS(X) PLAIT_LOW_BIT_BLOCKS(X) PLAIT_IRREGULAR_BLOCKS(X)

namespace plait {

template <class Block>
PLAIT_INLINE void decode_expanded(const Block& block, float* out) {
    uint8_t codes[Block::kElements];
    float scales[Block::kElements / 16];
    expand(block, codes, scales);
    for (int i = 0; i < Block::kElements; ++i)
        out[i] = scales[i / 16] * static_cast<float>(codes[i] - kExpandedOffset);
}

#define PLAIT_DECODE(name, Block) \
    PLAIT_INLINE void decode(const Block& block, float* out) { decode_expanded(block, out); }
PLAIT_EXPANDED_BLOCKS(PLAIT_DECODE)
#undef PLAIT_DECODE

}  // namespace plait
