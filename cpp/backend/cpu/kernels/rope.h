// Arguments of the rotation kernel.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct RopeArgs {
    Ref x, table, y;  // [n, heads, width], [n, n_rot / 2, 2] (cos, sin), as x; y may be x
    uint8_t extent;
    uint8_t interleaved;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t n_rot;
};

}  // namespace plait::cpu
