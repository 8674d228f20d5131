// Arguments of route, which chooses experts, of expert_linear and of combine.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu {

struct RouteArgs {
    Ref logits, bias;  // [n, experts], [experts]
    Ref expert_scale;  // [experts]
    Ref y;             // [n, used, 2] i32: expert, bits of its weight
    Extent extent;
    Gating gating;
    uint8_t renormalize;
    uint8_t has_bias;
    uint8_t has_expert_scale;
    int32_t experts;
    int32_t used;
    int32_t groups;  // of experts / groups successive experts each
    int32_t groups_used;
    int32_t group_best;  // experts whose scores are summed for a group's score: 1 or 2
    float scale;
    int64_t fixed_rows;
};

// Scratch bytes of one thread: weights and scores of the experts, weights of the chosen ones,
// scores of the groups, and flags of the experts and groups that are excluded.
PLAIT_INLINE int64_t route_scratch_bytes(const RouteArgs& args) {
    return 9 * int64_t{args.experts} + 4 * int64_t{args.used} + 5 * int64_t{args.groups};
}

struct ExpertLinearArgs {
    Ref x;       // [rows, in] or, if x_by_rank, [rows, used, in]; f32 or quantised
    Ref routes;  // [rows, used, 2] i32: expert, weight
    Ref bias;    // [experts, out]
    Ref y;       // [rows, used, out]
    uint8_t has_bias;
    uint8_t x_by_rank;
    Extent extent;
    int32_t used;
    int64_t fixed_rows;
    int64_t threads;
    PackedWeight weight;
};

// Scratch bytes of one thread for at most `pairs` pairs of a row and a rank.
PLAIT_INLINE int64_t expert_linear_scratch_bytes(const PackedWeight& weight, int64_t pairs) {
    return 4 * pairs + kRedoFloats * 4 + product_scratch_bytes(weight);
}

// True if tasks may be repeated.
PLAIT_INLINE bool expert_linear_redo(const ExpertLinearArgs& args, const Frame& frame) {
    const int64_t rows = frame.rows(args.extent, args.fixed_rows);
    return outlives_run(args.x) && outlives_run(args.routes) && rows <= kRedoRows &&
           rows * args.used * args.weight.lanes <= kRedoFloats;
}

// Sums the results of a token's experts.
struct CombineArgs {
    Ref x, routes, y;  // [n, used, width], [n, used, 2] i32: expert, bits of its weight, [n, width]
    Extent extent;
    int64_t fixed_rows;
    int64_t used;
    int64_t width;
};

}  // namespace plait::cpu
