// Products of many rows with signed 8-bit codes, for instruction sets that multiply unsigned by
// signed bytes only: a task's panels are split into magnitudes and signs once for all of its rows,
// with what the inverted factors add to a sum (Signs::kSplit).
#pragma once

#include "backend/cpu/kernels/products/block_dot.h"

namespace plait::cpu {

// 32 columns of a split panel: two bytes for each code, then two f32.
struct BlockSplit {
    static constexpr int kElements = 32;
};

template <>
struct BlockLayout<BlockSplit> {
    static constexpr int kBits = 16, kRecord = 8;
};

}  // namespace plait::cpu

namespace plait::cpu::PLAIT_ISA {

template <class Block>
constexpr bool kIsSplit = false;
template <>
constexpr bool kIsSplit<BlockSplit> = true;

// The scale of 32 columns, and what their inverted factors add to a sum.
struct ScaleAndError {
    const float* scales;
    PLAIT_INLINE_MEMBER void open(const uint8_t* record) {
        scales = reinterpret_cast<const float*>(record);
    }
    PLAIT_INLINE_MEMBER F32 scale(int) const { return F32::load(scales); }
    PLAIT_INLINE_MEMBER F32 error() const { return F32::load(scales + kLanes); }
};

template <>
struct BlockDot<BlockSplit> : EightBit<ScaleAndError> {
    static constexpr bool kIsQuick = false;  // tiles of eight rows load the codes less often
    template <class Code = SignedBytes>
    PLAIT_INLINE_MEMBER static Code code(const uint8_t* p, int g) {
        return Code::load(p + g * 8 * kLanes);
    }
};

// Splits a panel of w.columns columns: codes, then the scale and the error of every 32 columns.
template <class Block, class Code = SignedBytes>
void split_panel(const unsigned char* panel, const PackedWeight& w, unsigned char* to) {
    using D = BlockDot<Block>;
    const unsigned char* records = panel + w.records_offset;
    auto* scales = reinterpret_cast<float*>(to + w.columns * 2 * kLanes);
    for (int64_t k = 0; k < w.columns; k += Block::kElements) {
        typename D::Scales s;
        s.open(records);
        records += BlockLayout<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            Sums error;
#pragma GCC unroll 8
            for (int g = 0; g < 8; ++g) {
                const Code code = Code::of(D::code(panel, g));
                code.store(to);
                error.template add<Signs::kSplit, 8>(code, Bytes::set(0), g);
                to += 8 * kLanes;
            }
            s.scale(b).store(scales);
            error.value().store(scales + kLanes);
            scales += 2 * kLanes;
            panel += 4 * kLanes * BlockLayout<Block>::kBits;
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
