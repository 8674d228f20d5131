// Arguments of the matrix products y = x W^T (+ bias + residual).

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, y;              // [rows, columns], [rows, outputs]
    Ref bias;              // [outputs], or [matrices, bias_stride]
    Ref residual;          // [rows, outputs], added to the product
    Ref routes;            // [rows, 2] i32: the matrix of each row, and a weight that is not used here
    uint64_t weight;
    uint64_t row_bytes;
    Rows rows;             // there are rows * rows_each rows of y
    uint rows_each;
    uint columns, outputs;
    uint x_share;          // consecutive rows of y that use the same row of x
    uint matrices;         // without routes, row i uses matrix i % matrices
    uint bias_stride;      // in elements, between the biases of consecutive matrices
    uint has_bias, has_residual, has_routes;
};
#include "lib/push.glsl"

// Returns the number of the matrix in the stack that a row is multiplied by.
uint matrix_of(uint row) {
    return args.has_routes != 0 ? uint(ints(args.routes).v[2 * row]) : row % args.matrices;
}

// Returns four columns of the row of x at an address, with zeros after the last one.
vec4 x_at(uint64_t row, uint column) {
    const uint64_t at = row + 4ul * column;
    if ((uint(at) & 15u) == 0 && column + 4 <= args.columns) return uintBitsToFloat(Quads(at).v[0]);
    vec4 four = vec4(0.0);
    [[unroll]] for (uint i = 0; i < 4; ++i)
        if (column + i < args.columns) four[i] = Floats(at).v[i];
    return four;
}
