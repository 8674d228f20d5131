// Arguments of the norms and of row_sum. A norm computes a vector, and row_sum a number, from each
// vector of the last axis.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

struct NormArgs {
    Ref x, y;          // vectors; y may be x. For row_sum, y has a number for each vector
    Ref weight, bias;  // [weights, width]; vector v uses row v % weights
    uint8_t has_weight;
    uint8_t has_bias;
    int64_t weights;
    Vectors vectors;
    float epsilon;
};

}  // namespace plait::cpu
