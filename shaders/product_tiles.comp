#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
// Matrix product y = x W^T (+ bias + residual) for many rows of x and one matrix W. A workgroup
// computes a tile of ROWS rows by OUTPUTS outputs. It loads tiles of x and W with DEPTH columns
// into shared memory, and each invocation keeps MY_ROWS by MY_OUTPUTS sums in registers. Every
// element is summed column by column, whatever the tile sizes.
// Dispatch: outputs / OUTPUTS, rows / ROWS.

layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
layout(constant_id = 1) const uint ROWS = 32;
layout(constant_id = 2) const uint OUTPUTS = 32;
layout(constant_id = 3) const uint MY_ROWS = 4;
layout(constant_id = 4) const uint MY_OUTPUTS = 4;
layout(constant_id = 5) const uint DEPTH = 32;      // a multiple of GROUP
layout(constant_id = 6) const uint WORKGROUP = 64;  // ROWS / MY_ROWS * OUTPUTS / MY_OUTPUTS
layout(local_size_x_id = 6) in;
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/product.glsl"

const uint ACROSS = OUTPUTS / MY_OUTPUTS;  // invocations along the outputs of a tile

// Padded by one element, so that consecutive columns are in different banks.
shared float x_tile[DEPTH][ROWS + 1];     // [column, row]
shared float w_tile[DEPTH][OUTPUTS + 1];  // [column, output]

void load_x(uint first_row, uint n, uint first_column) {
    Floats x = floats(args.x);
    for (uint i = gl_LocalInvocationIndex; i < ROWS * DEPTH; i += WORKGROUP) {
        const uint row = first_row + i / DEPTH, column = first_column + i % DEPTH;
        x_tile[i % DEPTH][i / DEPTH] =
            row < n && column < args.columns ? x.v[row * args.columns + column] : 0.0;
    }
}

void load_w(uint first_output, uint first_column) {
    const uint parts = DEPTH / GROUP;
    for (uint i = gl_LocalInvocationIndex; i < OUTPUTS * parts; i += WORKGROUP) {
        const uint index = i / parts, part = i % parts;
        const uint o = first_output + index;
        const uint group = first_column / GROUP + part;
        float v[16];
        if (o < args.outputs && group * GROUP < args.columns)
            unpack(TYPE, args.weight + o * args.row_bytes, group, v);
        else
            [[unroll]] for (uint j = 0; j < GROUP; ++j)
                v[j] = 0.0;
        [[unroll]] for (uint j = 0; j < GROUP; ++j)
            w_tile[part * GROUP + j][index] = v[j];
    }
}

void main() {
    const uint n = rows_of(args.rows) * args.rows_each;
    const uint first_output = gl_WorkGroupID.x * OUTPUTS;
    Floats y = floats(args.y), residual = floats(args.residual);
    const uint my_row = gl_LocalInvocationIndex / ACROSS * MY_ROWS;
    const uint my_output = gl_LocalInvocationIndex % ACROSS;
    for (uint first_row = gl_WorkGroupID.y * ROWS; first_row < n; first_row += gl_NumWorkGroups.y * ROWS) {
        float sums[MY_ROWS * MY_OUTPUTS];
        [[unroll]] for (uint i = 0; i < MY_ROWS * MY_OUTPUTS; ++i)
            sums[i] = 0.0;
        for (uint column = 0; column < args.columns; column += DEPTH) {
            load_x(first_row, n, column);
            load_w(first_output, column);
            barrier();
            for (uint k = 0; k < DEPTH; ++k) {
                float a[MY_ROWS], b[MY_OUTPUTS];
                [[unroll]] for (uint r = 0; r < MY_ROWS; ++r)
                    a[r] = x_tile[k][my_row + r];
                [[unroll]] for (uint o = 0; o < MY_OUTPUTS; ++o)
                    b[o] = w_tile[k][my_output + o * ACROSS];
                [[unroll]] for (uint r = 0; r < MY_ROWS; ++r)
                    [[unroll]] for (uint o = 0; o < MY_OUTPUTS; ++o)
                        sums[r * MY_OUTPUTS + o] = fma(a[r], b[o], sums[r * MY_OUTPUTS + o]);
            }
            barrier();
        }
        float bias[MY_OUTPUTS];
        [[unroll]] for (uint j = 0; j < MY_OUTPUTS; ++j) {
            const uint o = first_output + my_output + j * ACROSS;
            bias[j] = args.has_bias != 0 && o < args.outputs ? floats(args.bias).v[o] : 0.0;
        }
        [[unroll]] for (uint r = 0; r < MY_ROWS; ++r)
            [[unroll]] for (uint j = 0; j < MY_OUTPUTS; ++j) {
                const uint row = first_row + my_row + r, o = first_output + my_output + j * ACROSS;
                const uint at = row * args.outputs + o;
                if (row < n && o < args.outputs) {
                    const float sum = sums[r * MY_OUTPUTS + j] + bias[j];
                    y.v[at] = args.has_residual != 0 ? sum + residual.v[at] : sum;
                }
            }
    }
}
