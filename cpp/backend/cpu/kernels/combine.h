// Arguments of the kernel that adds up what a token's experts made.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct CombineArgs {
    Ref x, routes, y;  // [n, used, width], [n, used, 2] i32: expert, bits of its weight, [n, width]
    uint8_t extent;
    int64_t fixed_rows;
    int64_t used;
    int64_t width;
};

}  // namespace plait::cpu
