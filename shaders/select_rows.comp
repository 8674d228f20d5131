#version 450
#extension GL_GOOGLE_include_directive : require
// Copies row indices[i] of x to row i of y.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, indices, y;  // [x rows, width], [rows] i32, [rows, width]; 4-byte elements
    Rows rows;
    uint width;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.width;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = uint(ints(args.indices).v[i / args.width]);
        ints(args.y).v[i] = ints(args.x).v[row * args.width + i % args.width];
    }
}
