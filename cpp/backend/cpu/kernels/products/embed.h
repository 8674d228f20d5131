// Arguments of the embed kernel, which reads rows of a packed table.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/cpu/kernels/products/packed.h"

namespace plait::cpu {

struct EmbedArgs {
    Ref tokens, y;  // i32 [rows], each in [0, table.rows); [rows, table.columns]
    uint8_t extent;
    int64_t fixed_rows;
    PackedWeight table;
};

}  // namespace plait::cpu
