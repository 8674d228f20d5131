// Arguments of expert_linear and combine.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu {

struct ExpertLinearArgs {
    Ref x;       // [rows, in] or, if x_by_rank, [rows, used, in]; f32 or quantised
    Ref routes;  // [rows, used, 2] i32: expert, weight
    Ref bias;    // [experts, out]
    Ref y;       // [rows, used, out]
    uint8_t has_bias;
    uint8_t x_by_rank;
    uint8_t extent;
    int32_t used;
    int64_t fixed_rows;
    PackedWeight weight;
};

// Scratch bytes of one thread for at most `pairs` pairs of a row and a rank.
PLAIT_INLINE int64_t expert_linear_scratch_bytes(const PackedWeight& weight, int64_t pairs) {
    return product_scratch_bytes(weight) + 4 * pairs;
}

// Sums the results of a token's experts.
struct CombineArgs {
    Ref x, routes, y;  // [n, used, width], [n, used, 2] i32: expert, bits of its weight, [n, width]
    uint8_t extent;
    int64_t fixed_rows;
    int64_t used;
    int64_t width;
};

}  // namespace plait::cpu
