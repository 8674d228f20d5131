// Rows of activations times the panels of a packed matrix: what linear and expert_linear share.
#pragma once

#include "backend/cpu/kernels/packed.h"

namespace plait::cpu {

struct Product {
    const PackedWeight* weight;
    const unsigned char* matrix;    // its first panel
    const unsigned char* x;         // rows of weight->input_bytes()
    float* y;                       // rows of weight->rows
    const float* bias;              // [weight->rows] or null
    const int32_t* rows;            // null: row i of x gives row i of y; otherwise row
    int64_t x_share;                //   rows[i] / x_share of x gives row rows[i] of y
    int64_t n;
};

}  // namespace plait::cpu

#ifdef PLAIT_ISA
namespace plait::cpu::PLAIT_ISA {

// Columns of y that belong to panels begin <= p < end. Each output is summed over the columns in
// one order that depends on nothing else, so it has the same bits in whatever company it is made.
void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);

}  // namespace plait::cpu::PLAIT_ISA
#endif
