// Arguments of the norms and of row_sum: a number or a vector from each vector of the last axis.
#pragma once

#include "backend/cpu/kernels/vectors.h"

namespace plait::cpu {

struct NormArgs {
    Ref x, y;          // vectors of x; y may be x. row_sum: a number for each
    Ref weight, bias;  // [weights, width]; vector v takes number v % weights
    uint8_t has_weight;
    uint8_t has_bias;
    int64_t weights;
    Vectors vectors;
    float epsilon;
};

}  // namespace plait::cpu
