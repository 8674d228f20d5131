// The values of a row of a packed matrix, dequantised exactly.
#pragma once

#include "backend/cpu/kernels/products/codes.h"
#include "tensor/blocks/expanded.h"
#include "tensor/half.h"

namespace plait::cpu::PLAIT_ISA {

template <class Block>
void read_blocks(const PackedWeight& w, const unsigned char* panel, int64_t lane, int64_t begin,
                 int64_t end, float* y) {
    for (int64_t b = begin / Block::kElements; b < end / Block::kElements; ++b) {
        Block block;
        unpack_block(w, panel, lane, b, block);
        decode(block, y);
        y += Block::kElements;
    }
}

// Writes columns [begin, end) of a lane to y. Both are multiples of the type's block.
PLAIT_INLINE void read_columns(const PackedWeight& w, const unsigned char* panel, int64_t lane,
                               int64_t begin, int64_t end, float* y) {
    switch (w.format) {
#define PLAIT_CASE(name, Block) \
    case DType::name: read_blocks<Block>(w, panel, lane, begin, end, y); break;
        PLAIT_BLOCKS(PLAIT_CASE)
        PLAIT_IRREGULAR_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16:
    case DType::bf16: {
        const auto* elements = reinterpret_cast<const uint16_t*>(panel);
        const bool wide = w.format == DType::bf16;
        for (int64_t k = begin; k < end; ++k) {
            const uint16_t half = elements[w.element(k, lane)];
            *y++ = wide ? bf16_to_f32(half) : f16_to_f32(half);
        }
        break;
    }
    default: {
        const float* elements = reinterpret_cast<const float*>(panel) + lane;
        for (int64_t k = begin; k < end; ++k) *y++ = elements[k * w.lanes];
    }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
