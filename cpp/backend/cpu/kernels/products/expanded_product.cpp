// Products with block types of few bits, by the weight's type.
#include "backend/cpu/kernels/products/expanded_product.h"

#include "backend/cpu/kernels/products/block_product.h"

namespace plait::cpu::PLAIT_ISA {

// Scratch: up to kMaxTaskBytes of expanded panels, but at least one, then the scratch of
// multiply_blocks().
template <class Block>
void multiply_expanded(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.records_offset = w.columns * kLanes;
    w.panel_bytes = packed.product_panel_bytes();
    const int64_t max_panels = larger(kMaxTaskBytes / w.panel_bytes, 1);
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

}  // namespace plait::cpu::PLAIT_ISA
