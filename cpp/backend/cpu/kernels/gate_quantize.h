// Arguments of a gate whose result is rounded for products.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct GateQuantizeArgs {
    Ref g, up, y;  // [rows, columns] f32; y: the words of quantize_rows
    uint8_t how;   // plait::Activation
    uint8_t extent;
    int64_t fixed_rows;
    int64_t rows_per_item;  // rows of `columns` in one row of the extent
    int64_t columns;
};

}  // namespace plait::cpu
