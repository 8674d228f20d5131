// Products of activation rows with packed matrices, by the weight's type; and products with the
// types whose panels are expanded first.
#include "backend/cpu/kernels/products/product.h"

#include "backend/cpu/kernels/products/block_product.h"
#include "backend/cpu/kernels/products/expanded_product.h"
#include "tensor/blocks/expanded.h"

namespace plait::cpu::PLAIT_ISA {

// Scratch: up to kMaxTaskBytes of expanded panels, but at least one, then the scratch of
// multiply_blocks().
template <class Block>
void multiply_expanded(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.records_offset = w.columns * kLanes;
    w.panel_bytes = packed.product_panel_bytes();
    const int64_t max_panels = w.panel_bytes < kMaxTaskBytes ? kMaxTaskBytes / w.panel_bytes : 1;
    const auto expand = [&](const unsigned char* from, unsigned char* to) {
        expand_panel<Block>(from, w.columns, to);
    };
    multiply_converted(product, w, max_panels, begin, end, scratch, expand,
                       [](const Product& expanded, int64_t n, unsigned char* rest) {
                           multiply_blocks<BlockExpanded>(expanded, 0, n, rest);
                       });
}

#define PLAIT_INSTANTIATE(name, Block) \
    template void multiply_expanded<Block>(const Product&, int64_t, int64_t, unsigned char*);
PLAIT_EXPANDED_BLOCKS(PLAIT_INSTANTIATE)
#undef PLAIT_INSTANTIATE

void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const PackedWeight& weight = *product.weight;
    if (weight.tiles && product.n >= weight.tiles->min_rows)
        return weight.tiles->multiply(product, begin, end, scratch);
    switch (weight.format) {
#define PLAIT_CASE(name, Block) \
    case DType::name: return multiply_blocks<Block>(product, begin, end, scratch);
        PLAIT_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
#define PLAIT_CASE(name, Block) \
    case DType::name: return multiply_expanded<Block>(product, begin, end, scratch);
        PLAIT_EXPANDED_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16: return multiply_f16(product, begin, end, scratch);
    case DType::bf16: return multiply_bf16(product, begin, end, scratch);
    case DType::f32:
    case DType::i32: return multiply_f32(product, begin, end, scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
