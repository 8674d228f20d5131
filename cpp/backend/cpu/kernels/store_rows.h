// Arguments of the kernel that writes rows of a cache.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct StoreRowsArgs {
    Ref storage, x, rows;  // [., row_bytes], [n, heads, width], [n] i32
    uint8_t dtype;         // plait::DType of the storage
    uint8_t extent;
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t head_elements;  // width padded to whole blocks
    int64_t row_bytes;
};

}  // namespace plait::cpu
