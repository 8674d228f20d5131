// Arguments of the linear kernel.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/packed.h"

namespace plait::cpu {

struct LinearArgs {
    Ref x, bias, y;  // [rows, in] f32 or quantised, [out], [rows, out]
    Ref residual;    // [rows, out]
    uint8_t has_bias;
    uint8_t has_residual;
    uint8_t extent;
    int64_t fixed_rows;
    PackedWeight weight;
};

}  // namespace plait::cpu
