// The product of activation rows with a packed matrix. Shared by linear, head_linear and
// expert_linear.
#pragma once

#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu {

class Claim;

struct Product {
    const PackedWeight* weight;
    const unsigned char* matrix;  // starts at panel number first_panel
    int64_t first_panel;
    const unsigned char* x;  // [x_rows, weight->columns] f32, or as quantize_rows writes it
    int64_t x_rows;
    float* y;  // [., y_columns]
    int64_t y_columns;
    int64_t y_begin;        // the output in y's first column
    const float* bias;      // [weight->rows] or null
    const float* residual;  // added to y, of the same shape; or null
    // Row i of the n rows is row rows[i] of y or, if rows is null, row first + i * row_step. It is
    // the product of row (that number / x_share) of x. With consecutive rows, `first` starts a row
    // group.
    const int32_t* rows;
    int64_t first;
    int64_t row_step;
    int64_t x_share;
    int64_t n;

    PLAIT_INLINE_MEMBER int64_t row(int64_t i) const {
        return rows ? rows[i] : first + i * row_step;
    }
    PLAIT_INLINE_MEMBER bool in_place() const { return !rows && row_step == 1 && x_share == 1; }
};

}  // namespace plait::cpu

#ifdef PLAIT_ISA
namespace plait::cpu::PLAIT_ISA {

// Computes the columns of y that belong to panels begin <= p < end. Each output is summed over the
// columns in one fixed order, so its bits do not depend on the other rows or panels of the call.
void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);

// As multiply(), for tasks that another thread may take over: computes up to `together` panels at a
// time in the first kRedoFloats floats of the scratch and commits them. y has y_rows rows, whose
// outputs for one panel fit there.
void multiply_claimed(const Product& product, int64_t y_rows, int64_t begin, int64_t end,
                      int64_t together, Claim& claim, unsigned char* scratch);

// multiply() for weights of one type. They take seconds to compile, so each block type has a file
// of its own, which CMake makes from block_product.cpp.in.
template <class Block>
void multiply_blocks(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);
template <class Block>
void multiply_expanded(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);
void multiply_f32(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);
void multiply_f16(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);
void multiply_bf16(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);

}  // namespace plait::cpu::PLAIT_ISA
#endif
