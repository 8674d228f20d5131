// Arguments of linear and head_linear; of embed, which reads rows of a packed table; and of mix.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu {

struct LinearArgs {
    Ref x, bias, y;  // [rows, in] f32 or quantised, [out], [rows, out]
    Ref residual;    // [rows, out]
    uint8_t has_bias;
    uint8_t has_residual;
    Extent extent;
    int64_t fixed_rows;
    int64_t threads;
    PackedWeight weight;
};

// True if tasks may be repeated.
PLAIT_INLINE bool linear_redo(const LinearArgs& args, const Frame& frame) {
    return outlives_run(args.x) && frame.rows(args.extent, args.fixed_rows) <= kRedoRows;
}

struct HeadLinearArgs {
    Ref x, y;  // [rows, heads, in] f32 or quantised, [rows, heads, out]
    Extent extent;
    int64_t fixed_rows;
    int64_t threads;
    PackedWeight weight;  // a matrix for each head
};

struct EmbedArgs {
    Ref tokens, y;  // i32 [rows], each in [0, table.rows); [rows, table.columns]
    Extent extent;
    int64_t fixed_rows;
    PackedWeight table;
};

// Mixes the vectors of each token by a matrix of the token.
struct MixArgs {
    Ref x, weights, y;  // [n, inputs, width], [n, outputs, inputs], [n, outputs, width]
    Extent extent;
    int64_t fixed_rows;
    int64_t inputs, outputs, width;
};

}  // namespace plait::cpu
