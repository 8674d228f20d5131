// Arguments of quantize_rows, and the words it writes.
//
// A row of `columns` values becomes 40 bytes for every 32:
//   int8  codes[columns]          nearest to x * 127 / m, m the largest magnitude of its 32
//   f32   scales[columns / 32]    m / 127; NaN where one of the 32 is not finite
//   i16   sums[columns / 16]      of 16 codes
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct QuantizeRowsArgs {
    Ref x, y;  // f32 [rows, columns] -> [rows, columns / 32 * 10 words]
    uint8_t extent;
    int64_t fixed_rows;
    int64_t rows_per_item;  // rows of `columns` in one row of the extent
    int64_t columns;
};

}  // namespace plait::cpu
