// Arguments of the kernel that tabulates rotations.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/frequency.h"

namespace plait::cpu {

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
