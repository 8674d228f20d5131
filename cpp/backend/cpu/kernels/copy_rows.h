// Arguments of the kernel that copies rows inside a cache.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct CopyRowsArgs {
    Ref storage, from, to;  // [., row_bytes], [moves] i32, [moves] i32
    uint8_t extent;         // of the lists
    int64_t fixed_rows;
    int64_t row_bytes;
};

}  // namespace plait::cpu
