#version 450
#extension GL_GOOGLE_include_directive : require
// Combines the partial results of attend.comp for the splits of the keys, in order. A workgroup
// computes one head of one token.
// Dispatch: heads, rows.

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint SPLITS = 1;
#include "lib/frame.glsl"
#include "lib/attend.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref parts, y;  // [rows, heads, SPLITS, value_dim + 2], [rows, heads, value_dim]
    Ref sinks;     // [heads]
    Rows rows;
    uint heads, value_dim;
    uint has_sinks;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows);
    const uint head = gl_WorkGroupID.x, stride = args.value_dim + 2;
    const bool has_sink = args.has_sinks != 0;
    const float sink = has_sink ? floats(args.sinks).v[head] : 0.0;
    for (uint token = gl_WorkGroupID.y; token < n; token += gl_NumWorkGroups.y) {
        const uint row = token * args.heads + head;
        Floats parts = Floats(address(args.parts) + 4ul * row * SPLITS * stride);
        float max_score = MINUS_INFINITY, sum = 0.0;
        for (uint i = 0; i < SPLITS; ++i)
            max_score = max(max_score, parts.v[i * stride]);
        const float shift = finite_or_zero(max_score);
        for (uint i = 0; i < SPLITS; ++i)
            sum += parts.v[i * stride + 1] * exp(parts.v[i * stride] - shift);
        const float share = share_of(max_score, sum, has_sink, sink);
        for (uint c = gl_LocalInvocationIndex; c < args.value_dim; c += gl_WorkGroupSize.x) {
            float value = 0.0;
            for (uint i = 0; i < SPLITS; ++i)
                value += parts.v[i * stride + 2 + c] * exp(parts.v[i * stride] - shift);
            floats(args.y).v[row * args.value_dim + c] = value * share;
        }
    }
}
