// Arguments of the products y = x W^T (+ bias), and which matrix of a stack a row of x meets.

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, y;              // [rows, columns], [rows, outputs]
    Ref bias;              // [outputs], or so many for each matrix
    Ref residual;          // as y, added
    Ref routes;            // [rows, 2] i32: the matrix of each row, and a weight
    uint64_t weight;
    uint64_t row_bytes;
    Rows rows;             // each of `rows_each` rows
    uint rows_each;
    uint columns, outputs;
    uint x_share;          // so many neighbouring rows are of one row of x
    uint matrices;         // taken in turn by the rows, where there are no routes
    uint bias_stride;      // from one matrix's bias to the next
    uint has_bias, has_residual, has_routes;
};
#include "lib/push.glsl"

uint matrix_of(uint row) {
    return args.has_routes != 0 ? uint(ints(args.routes).v[2 * row]) : row % args.matrices;
}
