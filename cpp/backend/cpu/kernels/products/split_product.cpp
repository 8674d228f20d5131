// Products of many rows with signed 8-bit codes, by the weight's type.
#include "backend/cpu/kernels/products/split_product.h"

#include "backend/cpu/kernels/products/block_product.h"

namespace plait::cpu::PLAIT_ISA {

// Scratch: up to kMaxTaskBytes of split panels, but at least one, then the scratch of
// multiply_blocks().
template <class Block>
void multiply_split(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    if constexpr (kRow.splits_signs) {
        const PackedWeight& packed = *product.weight;
        PackedWeight w = packed;
        w.records_offset = w.columns * 2 * kLanes;
        w.panel_bytes = split_panel_bytes(packed);
        const int64_t max_panels = larger(kMaxTaskBytes / w.panel_bytes, 1);
        const auto split = [&](const unsigned char* from, unsigned char* to) {
            split_panel<Block>(from, packed, to);
        };
        multiply_converted(product, w, max_panels, begin, end, scratch, split,
                           [](const Product& converted, int64_t n, unsigned char* rest) {
                               multiply_blocks<BlockSplit>(converted, 0, n, rest);
                           });
    }
}

template void multiply_split<BlockQ8_0>(const Product&, int64_t, int64_t, unsigned char*);
template void multiply_split<BlockIQ4_NL>(const Product&, int64_t, int64_t, unsigned char*);
template void multiply_split<BlockIQ4_XS>(const Product&, int64_t, int64_t, unsigned char*);

}  // namespace plait::cpu::PLAIT_ISA
