// Products with block types of few bits, by the weight's type.
#include "backend/cpu/kernels/products/expanded_product.h"

#include "backend/cpu/kernels/products/block_product.h"

namespace plait::cpu::PLAIT_ISA {

template <class Block>
void multiply_expanded(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    multiply_as<BlockExpanded>(product, begin, end, scratch,
                               [&](const unsigned char* from, unsigned char* to) {
                                   expand_panel<Block>(from, product.weight->columns, to);
                               });
}

#define PLAIT_INSTANTIATE(name, Block) \
    template void multiply_expanded<Block>(const Product&, int64_t, int64_t, unsigned char*);
PLAIT_EXPANDED_BLOCKS(PLAIT_INSTANTIATE)
#undef PLAIT_INSTANTIATE

}  // namespace plait::cpu::PLAIT_ISA
