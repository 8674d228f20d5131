// Products of activation rows with packed matrices, by the weight's format.
#include "backend/cpu/kernels/products/product.h"

#include "backend/cpu/kernels/products/block_product.h"
#include "backend/cpu/kernels/products/expanded_product.h"
#include "backend/cpu/kernels/products/float_product.h"
#include "backend/cpu/kernels/products/tile_product.h"

namespace plait::cpu::PLAIT_ISA {

void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
#if defined(PLAIT_ISA_AVX512) && defined(PLAIT_HAS_AMX)
    if (product.weight->tiles && product.n >= kTiledRows)
        return amx::multiply(product, begin, end, scratch);
#endif
    switch (product.weight->format) {
#define PLAIT_CASE(name, Block) \
    case Format::name: return multiply_blocks<Block>(product, begin, end, scratch);
        PLAIT_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
#define PLAIT_CASE(name, Block) \
    case Format::name: return multiply_expanded<Block>(product, begin, end, scratch);
        PLAIT_EXPANDED_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case Format::f16:
        if (widens(*product.weight, product.n))
            return multiply_widened(product, begin, end, scratch);
        return multiply_floats<WeightF16>(product, begin, end, scratch);
    case Format::bf16:
#ifdef PLAIT_ISA_AVX512
        if (product.weight->pairs) return multiply_floats<PairsBF16>(product, begin, end, scratch);
#endif
        return multiply_floats<WeightBF16>(product, begin, end, scratch);
    case Format::f32:
    case Format::i32: return multiply_floats<WeightF32>(product, begin, end, scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
