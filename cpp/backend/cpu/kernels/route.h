// Arguments of the kernel that chooses experts.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct RouteArgs {
    Ref logits, y;        // [n, experts], [n, used, 2] i32: expert, bits of its weight
    uint8_t extent;
    uint8_t renormalize;
    int32_t experts;
    int32_t used;
    float scale;
    int64_t fixed_rows;
};

}  // namespace plait::cpu
