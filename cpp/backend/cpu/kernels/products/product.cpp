// Products of activation rows with packed matrices, by the weight's type. Only declarations are
// included, so that no type is compiled here.
#include "backend/cpu/kernels/products/product.h"

#include "backend/cpu/kernels/common/claim.h"
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

void multiply_claimed(const Product& product, int64_t y_rows, int64_t begin, int64_t end,
                      int64_t together, Claim& claim, unsigned char* scratch) {
    const PackedWeight& w = *product.weight;
    auto* const made = reinterpret_cast<float*>(scratch);
    const int64_t fits = kRedoFloats / (y_rows * w.lanes);
    if (together > fits) together = fits;
    for (; begin < end; begin += together) {
        const int64_t last = begin + together < end ? begin + together : end;
        const int64_t first = begin * w.lanes;
        const int64_t columns = (last * w.lanes < w.rows ? last * w.lanes : w.rows) - first;
        Product part = product;
        part.y = made;
        part.y_columns = together * w.lanes;
        part.y_begin = first;
        part.residual = nullptr;
        multiply(part, begin, last, scratch + kRedoFloats * 4);
        if (!claim.begin_commit()) return;
        for (int64_t i = 0; i < product.n; ++i) {
            const int64_t row = product.row(i);
            const int64_t at = row * product.y_columns + first;
            const float* from = made + row * part.y_columns;
            for (int64_t j = 0; j < columns; ++j)
                product.y[at + j] = product.residual ? from[j] + product.residual[at + j] : from[j];
        }
        claim.end_commit();
    }
}

}  // namespace plait::cpu::PLAIT_ISA
