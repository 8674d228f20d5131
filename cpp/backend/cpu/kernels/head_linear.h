// Arguments of the head_linear kernel.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/packed.h"

namespace plait::cpu {

struct HeadLinearArgs {
    Ref x, y;  // [rows, heads, in] f32 or quantised, [rows, heads, out]
    uint8_t extent;
    int64_t fixed_rows;
    PackedWeight weight;  // a matrix for each head
};

}  // namespace plait::cpu
