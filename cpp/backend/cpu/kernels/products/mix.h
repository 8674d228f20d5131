// Arguments of the kernel that mixes the vectors of each token.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

struct MixArgs {
    Ref x, weights, y;  // [n, inputs, width], [n, outputs, inputs], [n, outputs, width]
    Extent extent;
    int64_t fixed_rows;
    int64_t inputs, outputs, width;
};

}  // namespace plait::cpu
