// Arguments of the RMSNorm kernel.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct RmsNormArgs {
    Ref x, weight, y;      // [rows, width], [width], [rows, width]; y may be x
    uint8_t has_weight;
    uint8_t extent;
    int64_t fixed_rows;
    int64_t rows_per_item; // rows of `width` in one row of the extent: heads for a per-head norm
    int64_t width;
    float epsilon;
};

}  // namespace plait::cpu
