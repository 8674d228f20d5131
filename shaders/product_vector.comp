#version 450
#extension GL_GOOGLE_include_directive : require
// y = x W^T (+ bias + residual) for few rows of x, or for rows that meet different matrices of a stack:
// linear, head_linear and expert_linear. A workgroup makes OUTPUTS elements of one row; its
// invocations share out the columns. Twin: cpp/backend/cpu/kernels/product.cpp.
// Dispatch: outputs / OUTPUTS, rows.

const uint WORKGROUP = 64;
const uint OUTPUTS = 4;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/product.glsl"
#include "lib/reduce.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.rows_each;
    const uint groups = (args.columns + GROUP - 1) / GROUP;
    for (uint row = gl_WorkGroupID.y; row < n; row += gl_NumWorkGroups.y) {
        const uint matrix = matrix_of(row);
        Floats x = Floats(address(args.x) + 4ul * uint64_t(row / args.x_share) * args.columns);
        for (uint first = gl_WorkGroupID.x * OUTPUTS; first < args.outputs;
             first += gl_NumWorkGroups.x * OUTPUTS) {
            float sums[OUTPUTS] = float[OUTPUTS](0.0, 0.0, 0.0, 0.0);
            for (uint g = gl_LocalInvocationIndex; g < groups; g += WORKGROUP) {
                float a[16];
                for (uint i = 0; i < GROUP; ++i) {
                    const uint column = g * GROUP + i;
                    a[i] = column < args.columns ? x.v[column] : 0.0;
                }
                for (uint j = 0; j < OUTPUTS; ++j) {
                    const uint o = min(first + j, args.outputs - 1);
                    float w[16];
                    unpack(TYPE, args.weight + (uint64_t(matrix) * args.outputs + o) * args.row_bytes, g, w);
                    for (uint i = 0; i < GROUP; ++i)
                        sums[j] = fma(a[i], w[i], sums[j]);
                }
            }
            for (uint j = 0; j < OUTPUTS; ++j) {
                float sum = workgroup_sum(sums[j]);
                const uint o = first + j;
                if (gl_LocalInvocationIndex != j || o >= args.outputs)
                    continue;
                const uint at = row * args.outputs + o;
                if (args.has_bias != 0)
                    sum += floats(args.bias).v[matrix * args.bias_stride + o];
                if (args.has_residual != 0)
                    sum += floats(args.residual).v[at];
                floats(args.y).v[at] = sum;
            }
        }
    }
}
