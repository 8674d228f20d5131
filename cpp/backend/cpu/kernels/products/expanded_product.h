// Products with block types of few bits (tensor/blocks/expanded.h): a task's panels are expanded to
// bytes with a scale for every 16 or 32 columns, and multiplied in that form.
//
// simd/<isa>/expand.h defines:
//   ExpandedCodes  kColumns columns of all lanes, expanded. expand<Block>(blocks, columns) writes
//                  them; their codes have the offset kOffset<Block>
//   FourBlocks     four blocks of 32 activations, with the offsets [2][4] of their halves.
//                  dot<kUnit>(codes, b, to) sets lane l of to[i] to the dot product of block i with
//                  columns 32 (b + i) to 32 (b + i) + 31 of the lane. Every kUnit columns, 16 or 32,
//                  have a scale, by which their sum is multiplied after their offset is subtracted
//   expand_codes   overloads for types of which its instructions expand a block faster than expand(),
//                  or
//   expand_block   overloads that expand a block of every lane to a panel: codes, and in another
//                  place the scales of every ExpandedValues<Block>::kUnit columns
#pragma once

#include "backend/cpu/kernels/products/block_dot.h"
#include "tensor/blocks/expanded.h"

namespace plait::cpu::PLAIT_ISA {

// Of an expanded type: the columns that have one scale, 16 or 32, and the largest absolute value.
template <class Block>
struct ExpandedValues;
#define PLAIT_VALUES(Block, unit, max)                 \
    template <>                                        \
    struct ExpandedValues<Block> {                     \
        static constexpr int kUnit = unit, kMax = max; \
    };
PLAIT_VALUES(BlockIQ2_XXS, 32, 43)
PLAIT_VALUES(BlockIQ2_XS, 16, 43)
PLAIT_VALUES(BlockIQ2_S, 16, 43)
PLAIT_VALUES(BlockIQ3_XXS, 32, 62)
PLAIT_VALUES(BlockIQ3_S, 32, 15)
PLAIT_VALUES(BlockIQ1_S, 32, 9)
PLAIT_VALUES(BlockIQ1_M, 16, 9)
PLAIT_VALUES(BlockTQ1_0, 32, 1)
#undef PLAIT_VALUES

// With a small offset of codes, AVX2 can sum more products in 16 bits.
template <class Block>
constexpr int kPanelOffset = ExpandedValues<Block>::kMax < 16 ? 16 : kExpandedOffset;

// expand() of tensor/blocks. Overloads have the same results.
template <class Block>
PLAIT_INLINE void expand_codes(const Block& block, uint8_t* codes, float* scales) {
    expand(block, codes, scales);
}

// A block of every lane, as it is packed.
template <class Block>
struct PackedBlocks {
    const unsigned char* data;
};

// Prefetches as many bytes as n of these blocks have, 4 KiB after them. The hardware does not, because
// the parts of a block are not read in order.
template <class Block>
PLAIT_INLINE void prefetch_after(PackedBlocks<Block> blocks, int64_t n) {
    constexpr int64_t kAhead = 4096;
    for (int64_t i = 0; i < n * F32::kLanes * int64_t{sizeof(Block)}; i += 64)
        __builtin_prefetch(blocks.data + kAhead + i, 0, 2);
}

// Codes row by row, with a scale for every 16 of them: an ExpandedCodes.
struct LaneCodes {
    static constexpr int kColumns = 256;
    template <class Block>
    static constexpr int kOffset = kExpandedOffset;
    alignas(64) uint8_t codes[F32::kLanes][kColumns];
    alignas(64) float scales[F32::kLanes][kColumns / 16];

    template <class Block>
    PLAIT_INLINE_MEMBER void expand(const unsigned char* blocks, int64_t columns);
};

}  // namespace plait::cpu::PLAIT_ISA

#include PLAIT_SIMD_HEADER(expand.h)

namespace plait::cpu::PLAIT_ISA {

template <class Block>
PLAIT_INLINE_MEMBER void LaneCodes::expand(const unsigned char* blocks, int64_t columns) {
    for (int64_t k = 0; k < columns; k += Block::kElements) {
        for (int lane = 0; lane < kLanes; ++lane) {
            expand_codes(*reinterpret_cast<const Block*>(blocks), codes[lane] + k,
                         scales[lane] + k / 16);
            blocks += sizeof(Block);
        }
    }
}

// The form of a type's expanded panels.
template <class Block>
using BlockExpanded = BlockUnpacked<Block::kElements, ExpandedValues<Block>::kUnit,
                                    kPanelOffset<Block> + ExpandedValues<Block>::kMax,
                                    kPanelOffset<Block>, false, false, true>;

// Expands a block of every lane.
template <class Block>
PLAIT_INLINE void expand_block(PackedBlocks<Block> blocks, unsigned char* to, float* scales_to) {
    constexpr int kWords = Block::kElements / 4, kScales = Block::kElements / 16;
    alignas(64) uint8_t codes[kLanes][Block::kElements];
    float scales[kLanes][kScales];
    for (int lane = 0; lane < kLanes; ++lane) {
        // The block is read in place, since loads of a copy would wait for its stores.
        expand_codes(reinterpret_cast<const Block*>(blocks.data)[lane], codes[lane], scales[lane]);
        for (uint8_t& code : codes[lane])
            code = static_cast<uint8_t>(code - (kExpandedOffset - kPanelOffset<Block>));
    }
    if constexpr (kInPairs) {
        for (int word = 0; word < kWords; word += 2)
            for (int lane = 0; lane < kLanes; ++lane, to += 8)
                memcpy(to, codes[lane] + 4 * word, 8);
    } else {
        for (int word = 0; word < kWords; word += kLanes) {
            F32 square[kLanes];  // each float holds a word of codes
            for (int lane = 0; lane < kLanes; ++lane)
                square[lane] = F32::load(reinterpret_cast<const float*>(codes[lane]) + word);
            transpose(square);
            for (int i = 0; i < kLanes; ++i) {
                square[i].store(reinterpret_cast<float*>(to));
                to += 4 * kLanes;
            }
        }
    }
    for (int i = 0; i < kScales; i += ExpandedValues<Block>::kUnit / 16)
        for (int lane = 0; lane < kLanes; ++lane) *scales_to++ = scales[lane][i];
}

// kPrefetches: the caller does not prefetch the panel.
template <class Block, bool kPrefetches>
void expand_panel(const unsigned char* panel, int64_t columns, unsigned char* to) {
    using To = BlockLayout<BlockExpanded<Block>>;
    for (int64_t k = 0; k < columns; k += Block::kElements) {
        const PackedBlocks<Block> blocks{panel};
        if constexpr (kPrefetches) prefetch_after(blocks, 1);
        expand_block(blocks, to + To::kRecord * kLanes, reinterpret_cast<float*>(to));
        panel += sizeof(Block) * kLanes;
        to += To::kBlock * kLanes;
    }
}

}  // namespace plait::cpu::PLAIT_ISA
