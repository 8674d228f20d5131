#version 450
#extension GL_GOOGLE_include_directive : require
// The factor of each token's queries, 1 + scale ln(1 + floor((position + offset) / period)).
// Dispatch: rows / 64.

layout(local_size_x = 64) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref positions, y;  // [rows] i32, [rows, 1]
    Rows rows;
    uint offset, period;
    float scale;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint steps = (uint(ints(args.positions).v[i]) + args.offset) / args.period;
        floats(args.y).v[i] = 1.0 + args.scale * log(1.0 + float(steps));
    }
}
