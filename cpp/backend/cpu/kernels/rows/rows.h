// Arguments of the kernels that copy rows or parts of vectors.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

// Copies rows inside a cache.
struct CopyRowsArgs {
    Ref storage, from, to;  // [., row_bytes], [moves] i32, [moves] i32
    Extent extent;          // of from and to
    int64_t fixed_rows;
    int64_t row_bytes;
};

// Gathers rows.
struct SelectRowsArgs {
    Ref x, rows, y;  // [., row_bytes], [n] i32, [n, row_bytes]
    Extent extent;
    int64_t fixed_rows;
    int64_t row_bytes;
};

// Changes some rows; see ops::EditRows.
struct EditRowsArgs {
    Ref x, rows, picks, y;  // x, y: [n, row_elements]; picks: [n, 2] i32
    Extent extent;
    uint8_t rows_by_row;  // row i of x is combined with row i of `rows`
    int64_t fixed_rows;
    int64_t row_elements;
};

// Copies a part of each vector.
struct SliceArgs {
    Ref x, y;  // vectors of x_width and of vectors.width elements
    int64_t x_width;
    int64_t begin;    // the first element of x to copy
    Vectors vectors;  // of y
};

// Joins vectors.
struct ConcatArgs {
    Ref a, b, y;          // vectors of a_width, vectors.width - a_width and vectors.width elements
    uint8_t b_is_shared;  // b has one vector for all vectors of a row
    int64_t a_width;
    Vectors vectors;  // of y
};

}  // namespace plait::cpu
