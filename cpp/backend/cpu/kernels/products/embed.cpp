// Rows of a packed table, dequantised exactly.
// Reference: tests/reference/embed.py.
#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/kernels/products/codes.h"
#include "tensor/blocks/expanded.h"
#include "tensor/half.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

template <class Block>
void read_blocks(const PackedWeight& table, const unsigned char* panel, int64_t lane, float* y) {
    for (int64_t b = 0; b < table.columns / Block::kElements; ++b) {
        Block block;
        unpack_block(table, panel, lane, b, block);
        decode(block, y + b * Block::kElements);
    }
}

template <class Block>
void read_expanded(const PackedWeight& table, const unsigned char* panel, int64_t lane, float* y) {
    for (int64_t b = 0; b < table.columns / Block::kElements; ++b) {
        Block block;
        memcpy(&block, panel + (b * table.lanes + lane) * int64_t{sizeof block}, sizeof block);
        decode_expanded(block, y + b * Block::kElements);
    }
}

void read_row(const PackedWeight& table, int64_t row, float* y) {
    const unsigned char* panel = table.data + row / table.lanes * table.panel_bytes;
    const int64_t lane = row % table.lanes;
    switch (table.format) {
#define PLAIT_CASE(name, Block) \
    case DType::name: read_blocks<Block>(table, panel, lane, y); break;
        PLAIT_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
#define PLAIT_CASE(name, Block) \
    case DType::name: read_expanded<Block>(table, panel, lane, y); break;
        PLAIT_EXPANDED_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16:
    case DType::bf16: {
        const auto* elements = reinterpret_cast<const uint16_t*>(panel);
        const bool wide = table.format == DType::bf16;
        for (int64_t k = 0; k < table.columns; ++k) {
            const uint16_t half = elements[table.element(k, lane)];
            y[k] = wide ? bf16_to_f32(half) : f16_to_f32(half);
        }
        break;
    }
    default: {
        const float* elements = reinterpret_cast<const float*>(panel) + lane;
        for (int64_t k = 0; k < table.columns; ++k) y[k] = elements[k * table.lanes];
    }
    }
}

}  // namespace

int64_t embed_tasks(const EmbedArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows);
}

void embed(const EmbedArgs& args, const Frame& frame, const Worker&, int64_t begin, int64_t end) {
    const auto* tokens = frame.at<const int32_t>(args.tokens);
    float* y = frame.at<float>(args.y);
    for (int64_t i = begin; i < end; ++i)
        read_row(args.table, tokens[i], y + i * args.table.columns);
}

}  // namespace plait::cpu::PLAIT_ISA
