#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require
// Matrix product y = x W^T (+ bias + residual) for few rows of x, or for rows that use different
// matrices of a stack. Shared by linear, head_linear and expert_linear. A workgroup computes
// OUTPUTS elements of ROWS rows. Its invocations divide the columns among them, so that each weight
// is unpacked once for all rows.
// Dispatch: outputs / OUTPUTS, rows / ROWS.

const uint OUTPUTS = 4;
layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
layout(constant_id = 1) const uint ROWS = 1;  // must be 1 if there are several matrices
layout(constant_id = 2) const uint WORKGROUP = 64;
layout(local_size_x_id = 2) in;
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/product.glsl"

shared float partial[ROWS * OUTPUTS][WORKGROUP];  // [row * OUTPUTS + output, subgroup]

void sum_columns(uint first_row, uint n, uint matrix, uint first_output) {
    const uint groups = (args.columns + GROUP - 1) / GROUP;
    float sums[ROWS * OUTPUTS];
    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; ++i)
        sums[i] = 0.0;
    for (uint g = gl_LocalInvocationIndex; g < groups; g += WORKGROUP) {
        float x[ROWS * 16];
        [[unroll]] for (uint r = 0; r < ROWS; ++r) {
            const uint row = min(first_row + r, n - 1);
            const uint64_t from = address(args.x) + 4ul * uint64_t(row / args.x_share) * args.columns;
            [[unroll]] for (uint i = 0; i < GROUP; i += 4) {
                const vec4 four = x_at(from, g * GROUP + i);
                [[unroll]] for (uint j = 0; j < 4; ++j)
                    x[r * GROUP + i + j] = four[j];
            }
        }
        [[unroll]] for (uint j = 0; j < OUTPUTS; ++j) {
            const uint o = min(first_output + j, args.outputs - 1);
            float w[16];
            unpack(TYPE, args.weight + (uint64_t(matrix) * args.outputs + o) * args.row_bytes, g, w);
            [[unroll]] for (uint r = 0; r < ROWS; ++r)
                [[unroll]] for (uint i = 0; i < GROUP; ++i)
                    sums[r * OUTPUTS + j] = fma(x[r * GROUP + i], w[i], sums[r * OUTPUTS + j]);
        }
    }
    [[unroll]] for (uint i = 0; i < ROWS * OUTPUTS; ++i) {
        const float sum = subgroupAdd(sums[i]);
        if (subgroupElect())
            partial[i][gl_SubgroupID] = sum;
    }
}

void main() {
    const uint n = rows_of(args.rows) * args.rows_each;
    const uint me = gl_LocalInvocationIndex;
    for (uint first_row = gl_WorkGroupID.y * ROWS; first_row < n; first_row += gl_NumWorkGroups.y * ROWS)
        for (uint first = gl_WorkGroupID.x * OUTPUTS; first < args.outputs;
             first += gl_NumWorkGroups.x * OUTPUTS) {
            const uint matrix = matrix_of(first_row);
            sum_columns(first_row, n, matrix, first);
            barrier();
            for (uint i = me; i < ROWS * OUTPUTS; i += WORKGROUP) {
                const uint row = first_row + i / OUTPUTS, o = first + i % OUTPUTS;
                if (row < n && o < args.outputs) {
                    const uint at = row * args.outputs + o;
                    float sum = partial[i][0];
                    for (uint j = 1; j < gl_NumSubgroups; ++j)
                        sum += partial[i][j];
                    if (args.has_bias != 0)
                        sum += floats(args.bias).v[matrix * args.bias_stride + o];
                    if (args.has_residual != 0)
                        sum += floats(args.residual).v[at];
                    floats(args.y).v[at] = sum;
                }
            }
            barrier();
        }
}
