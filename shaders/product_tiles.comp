#version 450
#extension GL_GOOGLE_include_directive : require
// y = x W^T (+ bias + residual) for many rows of x and one matrix. A workgroup makes a tile of 32 rows by
// 32 outputs, from tiles of x and of W that it holds in shared memory, 32 columns at a time.
// Twin: cpp/backend/cpu/kernels/product.cpp. Dispatch: outputs / 32, rows / 32.

const uint TILE = 32;
layout(local_size_x = 64) in;                 // 8 by 8, each of 4 rows by 4 outputs
layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/product.glsl"

shared float x_tile[TILE][TILE + 1];  // [column, row]
shared float w_tile[TILE][TILE + 1];  // [column, output]

void load_x(uint first_row, uint n, uint first_column) {
    Floats x = floats(args.x);
    for (uint i = gl_LocalInvocationIndex; i < TILE * TILE; i += 64) {
        const uint row = first_row + i / TILE, column = first_column + i % TILE;
        x_tile[i % TILE][i / TILE] =
            row < n && column < args.columns ? x.v[row * args.columns + column] : 0.0;
    }
}

// Each invocation unpacks one group of one row of W.
void load_w(uint first_output, uint first_column) {
    const uint output_index = gl_LocalInvocationIndex / 2, part = gl_LocalInvocationIndex % 2;
    const uint o = first_output + output_index;
    const uint group = first_column / GROUP + part;
    float v[16];
    if (o < args.outputs && group * GROUP < args.columns)
        unpack(TYPE, args.weight + o * args.row_bytes, group, v);
    else
        for (uint i = 0; i < GROUP; ++i)
            v[i] = 0.0;
    for (uint i = 0; i < GROUP; ++i)
        w_tile[part * GROUP + i][output_index] = v[i];
}

void main() {
    const uint n = rows_of(args.rows) * args.rows_each;
    const uint first_output = gl_WorkGroupID.x * TILE;
    const uint my_row = gl_LocalInvocationIndex / 8 * 4, my_output = gl_LocalInvocationIndex % 8 * 4;
    for (uint first_row = gl_WorkGroupID.y * TILE; first_row < n; first_row += gl_NumWorkGroups.y * TILE) {
        float sums[4][4];
        for (uint r = 0; r < 4; ++r)
            for (uint o = 0; o < 4; ++o)
                sums[r][o] = 0.0;
        for (uint column = 0; column < args.columns; column += TILE) {
            load_x(first_row, n, column);
            load_w(first_output, column);
            barrier();
            for (uint k = 0; k < TILE; ++k) {
                float a[4], b[4];
                for (uint i = 0; i < 4; ++i) {
                    a[i] = x_tile[k][my_row + i];
                    b[i] = w_tile[k][my_output + i];
                }
                for (uint r = 0; r < 4; ++r)
                    for (uint o = 0; o < 4; ++o)
                        sums[r][o] = fma(a[r], b[o], sums[r][o]);
            }
            barrier();
        }
        for (uint r = 0; r < 4; ++r)
            for (uint j = 0; j < 4; ++j) {
                const uint row = first_row + my_row + r, o = first_output + my_output + j;
                if (row >= n || o >= args.outputs)
                    continue;
                const uint at = row * args.outputs + o;
                float sum = sums[r][j];
                if (args.has_bias != 0)
                    sum += floats(args.bias).v[o];
                if (args.has_residual != 0)
                    sum += floats(args.residual).v[at];
                floats(args.y).v[at] = sum;
            }
    }
}
