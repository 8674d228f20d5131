// Arguments of linear and head_linear.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu {

// Arguments of the linear kernel.
struct LinearArgs {
    Ref x, bias, y;  // [rows, in] f32 or quantised, [out], [rows, out]
    Ref residual;    // [rows, out]
    uint8_t has_bias;
    uint8_t has_residual;
    uint8_t extent;
    int64_t fixed_rows;
    PackedWeight weight;
};

// With so few rows another thread may do tasks over again. Outputs wait in so many floats of the
// scratch, behind what the product itself needs, until they are known to be wanted.
constexpr int64_t kRedoRows = 2 * kMaxTileRows;
constexpr int64_t kRedoFloats = 16 * kKiB;

// Who did them first may still read x when the run is over. The arena and the inputs stay until
// nobody does (Threads::settle); outputs are the caller's, who may free them at once.
PLAIT_INLINE bool linear_redo(const LinearArgs& args, const Frame& frame) {
    const bool stays = args.x.base == kArena || args.x.base == kInputs;
    return stays && frame.rows(args.extent, args.fixed_rows) <= kRedoRows;
}

// Arguments of the head_linear kernel.
struct HeadLinearArgs {
    Ref x, y;  // [rows, heads, in] f32 or quantised, [rows, heads, out]
    uint8_t extent;
    int64_t fixed_rows;
    PackedWeight weight;  // a matrix for each head
};

}  // namespace plait::cpu
