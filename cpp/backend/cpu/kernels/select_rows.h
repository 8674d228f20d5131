// Arguments of the kernel that gathers rows.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct SelectRowsArgs {
    Ref x, rows, y;  // [., row_bytes], [n] i32, [n, row_bytes]
    uint8_t extent;
    int64_t fixed_rows;
    int64_t row_bytes;
};

}  // namespace plait::cpu
