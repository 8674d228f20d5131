// Products with block types of few bits, by the weight's type.
#include "backend/cpu/kernels/products/expanded_product.h"

#include "backend/cpu/kernels/products/block_product.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// ---- Few rows. A part of a panel is expanded at a time, in the form that takes the least time for
// the instruction set: most multiply lane by lane, since to put the lanes side by side would take
// longer than the products. Every sum has the terms and the order that
// it has in a register tile, so it has the same bits. ----

constexpr int kSpan = ExpandedCodes::kColumns;  // columns that are expanded at a time

// A row of activations, and the offset of the codes times the sums of its units of 16: [fours][2][4], as
// FourBlocks takes them. The last four may have fewer blocks.
struct LaneRow {
    QuantizedRow row;
    float* offsets;
};

PLAIT_INLINE int64_t fours_of(int64_t blocks) { return (blocks + 3) / 4; }

PLAIT_INLINE void put_offsets(const LaneRow& x, int64_t blocks, int offset) {
    for (int64_t b = 0; b < 4 * fours_of(blocks); ++b)
        for (int unit = 0; unit < 2; ++unit) {
            const int sum = b < blocks ? x.row.block_sums(b)[unit] : 0;
            x.offsets[b / 4 * 8 + 4 * unit + b % 4] = static_cast<float>(offset * sum);
        }
}

// Adds the products of `blocks` blocks, of which `first` is the first, to the sums y of all lanes.
template <int kUnit>
PLAIT_INLINE F32 add_blocks(F32 y, const ExpandedCodes& codes, const LaneRow& x, int64_t first,
                            int64_t blocks) {
    for (int64_t b = 0; b < blocks; b += 4) {
        const int64_t n = blocks - b < 4 ? blocks - b : 4;
        const int8_t* a = x.row.block_codes(first + b);
        int64_t stride = 32 * x.row.step;
        int8_t last[4 * 32];
        if (n < 4) {  // at the end of a row
            memset(last, 0, sizeof last);
            for (int64_t i = 0; i < n; ++i) memcpy(last + 32 * i, a + stride * i, 32);
            a = last;
            stride = 32;
        }
        F32 products[4];
        FourBlocks(a, stride, x.offsets + 2 * (first + b)).template dot<kUnit>(codes, b, products);
        for (int i = 0; i < n; ++i)
            y = fma(products[i], F32::set(*x.row.block_scale(first + b + i)), y);
    }
    return y;
}

// Scratch: the offsets of the rows.
template <class Block>
void multiply_lanes(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const int64_t columns = product.weight->columns, blocks = columns / 32;
    const int rows = static_cast<int>(product.n);
    LaneRow x[kMaxExpandedLaneRows];
    for (int r = 0; r < rows; ++r) {
        // Rows of quantize_rows are only read.
        x[r].row = quantized_row(const_cast<unsigned char*>(product.x), product.x_rows, columns,
                                 product.row(r) / product.x_share);
        x[r].offsets = reinterpret_cast<float*>(scratch) + r * 8 * fours_of(blocks);
        put_offsets(x[r], blocks, ExpandedCodes::kOffset<Block>);
    }
    ExpandedCodes codes{};
    for (int64_t panel = begin; panel < end; ++panel) {
        const unsigned char* from = product.matrix + panel * product.weight->panel_bytes;
        F32 y[kMaxExpandedLaneRows];
        for (int r = 0; r < rows; ++r) y[r] = F32::zero();
        for (int64_t b = 0; b < blocks; b += kSpan / 32) {
            const int64_t n = blocks - b < kSpan / 32 ? blocks - b : kSpan / 32;
            const int64_t inner = 32 * n / Block::kElements;
            prefetch_after(PackedBlocks<Block>{from}, inner);
            codes.expand<Block>(from, 32 * n);
            from += inner * kLanes * int64_t{sizeof(Block)};
            for (int r = 0; r < rows; ++r)
                y[r] = add_blocks<ExpandedValues<Block>::kUnit>(y[r], codes, x[r], b, n);
        }
        for (int r = 0; r < rows; ++r)
            store(product, product.y + product.row(r) * product.y_columns, panel, y[r]);
    }
}

}  // namespace

template <class Block>
void multiply_expanded(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    if (product.n <= kMaxExpandedLaneRows)
        return multiply_lanes<Block>(product, begin, end, scratch);
    multiply_as<BlockExpanded<Block>>(
        product, begin, end, scratch, [&](const unsigned char* from, unsigned char* to) {
            expand_panel<Block, true>(from, product.weight->columns, to);
        });
}

#define PLAIT_INSTANTIATE(name, Block)        \
    static_assert(is_irregular(DType::name)); \
    template void multiply_expanded<Block>(const Product&, int64_t, int64_t, unsigned char*);
PLAIT_IRREGULAR_BLOCKS(PLAIT_INSTANTIATE)
#undef PLAIT_INSTANTIATE

}  // namespace plait::cpu::PLAIT_ISA
