// Products of many rows with block types: the panels of a task are unpacked once for all of its
// rows, to a byte for each code and floats for the scales. Signed codes are split into magnitudes
// and signs, if the instruction set multiplies unsigned by signed bytes only (Signs::kSplit).
#pragma once

#include <type_traits>

#include "backend/cpu/kernels/products/block_dot.h"
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu {

// 32 columns of an unpacked panel. The parameters are constants of the BlockDot of the packed type.
template <int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned, bool kIsQuick>
struct BlockUnpacked {
    static constexpr int kElements = 32;
};

template <int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned, bool kIsQuick>
struct BlockLayout<BlockUnpacked<kUnit, kMaxCode, kOffset, kMinimum, kSigned, kIsQuick>> {
    static constexpr int kBits = kSigned ? 16 : 8;
    // The scale of every unit, with its minimum, or with the errors of inverted factors.
    static constexpr int kFloats = kMinimum || kSigned ? 2 : 1;
    static constexpr int kRecord = 32 / kUnit * kFloats * 4;
};

}  // namespace plait::cpu

namespace plait::cpu::PLAIT_ISA {

template <class D>
using UnpackedBlock =
    BlockUnpacked<D::kUnit, D::kMaxCode, D::kOffset, D::kMinimum, D::kSigned, D::kIsQuick>;

template <class Block>
constexpr bool kIsUnpacked = false;

template <int kUnit, int kMaxCode, int kOffset, bool kMinimum, bool kSigned, bool kIsQuick>
constexpr bool kIsUnpacked<BlockUnpacked<kUnit, kMaxCode, kOffset, kMinimum, kSigned, kIsQuick>> =
    true;

template <int kFloats>
struct UnpackedScales {
    const float* record;
    PLAIT_INLINE_MEMBER void open(const uint8_t* p) { record = reinterpret_cast<const float*>(p); }
    PLAIT_INLINE_MEMBER F32 scale(int i) const { return F32::load(record + i * kFloats * kLanes); }
    PLAIT_INLINE_MEMBER F32 minimum(int i) const {
        return F32::load(record + (i * kFloats + 1) * kLanes);
    }
    PLAIT_INLINE_MEMBER F32 error() const { return minimum(0); }
};

template <int kUnit_, int kMaxCode_, int kOffset_, bool kMinimum_, bool kSigned_, bool kIsQuick_>
struct BlockDot<BlockUnpacked<kUnit_, kMaxCode_, kOffset_, kMinimum_, kSigned_, kIsQuick_>> {
    using Block = BlockUnpacked<kUnit_, kMaxCode_, kOffset_, kMinimum_, kSigned_, kIsQuick_>;
    using Scales = UnpackedScales<BlockLayout<Block>::kFloats>;
    using Code = std::conditional_t<kSigned_, SignedBytes, Bytes>;
    static constexpr int kUnit = kUnit_, kMaxCode = kMaxCode_, kOffset = kOffset_;
    static constexpr bool kMinimum = kMinimum_, kSigned = kSigned_, kIsQuick = kIsQuick_;
    PLAIT_INLINE_MEMBER static Code code(const uint8_t* p, int g) {
        return Code::load(p + g * (BlockLayout<Block>::kBits / 2 * kLanes));
    }
};

// Unpacks a panel: the codes of all columns, then the records of every 32 columns.
template <class Block>
void unpack_panel(const unsigned char* panel, const PackedWeight& w, unsigned char* to) {
    using D = BlockDot<Block>;
    using To = UnpackedBlock<D>;
    constexpr int kBytes = BlockLayout<To>::kBits / 2 * kLanes;  // of the codes of four columns
    const unsigned char* records = panel + w.records_offset;
    auto* floats = reinterpret_cast<float*>(to + w.columns * kBytes / 4);
    const auto put = [&](F32 x) {
        x.store(floats);
        floats += kLanes;
    };
    for (int64_t k = 0; k < w.columns; k += Block::kElements) {
        typename D::Scales s;
        s.open(records);
        records += BlockLayout<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            Sums error;
#pragma GCC unroll 8
            for (int g = 0; g < 8; ++g) {
                const auto code = BlockDot<To>::Code::of(D::code(panel, g));
                code.store(to);
                if constexpr (D::kSigned)
                    error.template add<Signs::kSplit, 8>(code, Bytes::set(0), g);
                to += kBytes;
            }
            for (int u = b * 32 / D::kUnit; u < (b + 1) * 32 / D::kUnit; ++u) {
                put(s.scale(u));
                if constexpr (D::kMinimum) put(s.minimum(u));
                if constexpr (D::kSigned) put(error.value());
            }
            panel += 4 * kLanes * BlockLayout<Block>::kBits;
        }
    }
}

// multiply(product, n, scratch) multiplies n panels. Scratch: up to kMaxTaskBytes of unpacked
// panels, but at least one, then that of `multiply`.
template <class Block, class Multiply>
PLAIT_INLINE void multiply_unpacked(const Product& product, int64_t begin, int64_t end,
                                    unsigned char* scratch, Multiply multiply) {
    using Layout = BlockLayout<UnpackedBlock<BlockDot<Block>>>;
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.records_offset = w.columns / 8 * Layout::kBits * kLanes;
    w.panel_bytes = w.records_offset + w.columns / 32 * Layout::kRecord * kLanes;
    const int64_t max_panels = larger(kMaxTaskBytes / w.panel_bytes, 1);
    const auto unpack = [&](const unsigned char* from, unsigned char* to) {
        unpack_panel<Block>(from, packed, to);
    };
    multiply_converted(product, w, max_panels, begin, end, scratch, unpack, multiply);
}

}  // namespace plait::cpu::PLAIT_ISA
