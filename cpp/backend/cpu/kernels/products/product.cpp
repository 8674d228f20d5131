// Products of activation rows with packed matrices, by the weight's type. Only declarations are
// included, so that no type is compiled here.
#include "backend/cpu/kernels/products/product.h"

#include "backend/cpu/kernels/products/codes.h"
#include "tensor/blocks/expanded.h"

namespace plait::cpu::PLAIT_ISA {

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
        PLAIT_IRREGULAR_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case DType::f16: return multiply_f16(product, begin, end, scratch);
    case DType::bf16: return multiply_bf16(product, begin, end, scratch);
    case DType::f32:
    case DType::i32: return multiply_f32(product, begin, end, scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
