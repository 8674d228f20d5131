// Arguments of the kernel that rotates stored keys.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/frequency.h"

namespace plait::cpu {

struct RotateRowsArgs {
    Ref storage, rows, deltas, factors;  // [., row_bytes], [moves] i32, [moves] i32, [n_rot / 2]
    uint8_t dtype;                       // plait::DType of the storage
    uint8_t has_factors;
    uint8_t interleaved;
    uint8_t extent;                      // of the lists
    int64_t fixed_rows;
    int64_t heads;
    int64_t head_bytes;
    int64_t row_bytes;
    RopeFrequencies frequencies;
};

}  // namespace plait::cpu
