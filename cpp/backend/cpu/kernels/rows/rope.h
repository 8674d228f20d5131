// Arguments of rope and rope_table.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/shared/rotary.h"

namespace plait::cpu {

// Arguments of the rotation kernel.
struct RopeArgs {
    Ref x, table, y;  // [n, heads, width], [n, n_rot / 2, 2] (cos, sin), as x; y may be x
    uint8_t extent;
    uint8_t interleaved;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t n_rot;
};

// Arguments of the kernel that tabulates rotations.
struct RopeTableArgs {
    Ref positions, factors, y;  // [n, axes] i32, [n_rot / 2], [n, n_rot / 2, 2]
    uint8_t has_factors;
    uint8_t extent;
    int64_t fixed_rows;
    int64_t axes;
    int32_t sections[4];  // pairs per axis; all zero: axis 0 alone
    double magnitude;
    RopeFrequencies frequencies;
};

}  // namespace plait::cpu
