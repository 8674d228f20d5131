// Arguments of the kernel that chooses experts.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

// Has the values of plait::Gating.
enum : uint8_t { kGateSoftmax, kGateSigmoid, kGateChosen };

struct RouteArgs {
    Ref logits, bias;  // [n, experts], [experts]
    Ref expert_scale;  // [experts]
    Ref y;             // [n, used, 2] i32: expert, bits of its weight
    uint8_t extent;
    uint8_t gating;  // kGateSoftmax etc.
    uint8_t renormalize;
    uint8_t has_bias;
    uint8_t has_expert_scale;
    int32_t experts;
    int32_t used;
    int32_t groups;  // of experts / groups successive experts each
    int32_t groups_used;
    float scale;
    int64_t fixed_rows;
};

// Scratch bytes of one thread: weights and scores of the experts, weights of the chosen ones,
// scores of the groups, and flags of the experts and groups that are excluded.
PLAIT_INLINE int64_t route_scratch_bytes(const RouteArgs& args) {
    return 9 * int64_t{args.experts} + 4 * int64_t{args.used} + 5 * int64_t{args.groups};
}

}  // namespace plait::cpu
