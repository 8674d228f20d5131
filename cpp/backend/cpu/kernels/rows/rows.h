// Arguments of the kernels that copy rows, or parts of them.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/vectors.h"

namespace plait::cpu {

// Arguments of the kernel that copies rows inside a cache.
struct CopyRowsArgs {
    Ref storage, from, to;  // [., row_bytes], [moves] i32, [moves] i32
    uint8_t extent;         // of the lists
    int64_t fixed_rows;
    int64_t row_bytes;
};

// Arguments of the kernel that gathers rows.
struct SelectRowsArgs {
    Ref x, rows, y;  // [., row_bytes], [n] i32, [n, row_bytes]
    uint8_t extent;
    int64_t fixed_rows;
    int64_t row_bytes;
};

// Arguments of the kernel that copies a part of each vector.
struct SliceArgs {
    Ref x, y;  // vectors of x_width; of vectors.width
    int64_t x_width;
    int64_t begin;    // the first element of x that is copied
    Vectors vectors;  // of y
};

// Arguments of the kernel that joins vectors.
struct ConcatArgs {
    Ref a, b, y;          // vectors of a_width; of the rest of vectors.width; of both
    uint8_t b_is_shared;  // b has one vector for all of a row's
    int64_t a_width;
    Vectors vectors;  // of y
};

}  // namespace plait::cpu
