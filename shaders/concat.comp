#version 450
#extension GL_GOOGLE_include_directive : require
// Concatenates vectors: each vector of y is a vector of a followed by a vector of b.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref a, b, y;  // [vectors, a_width], [vectors / b_share, width - a_width], [vectors, width]
    Rows rows;
    uint row_elements;  // elements per row of y
    uint a_width, width;
    uint b_share;  // consecutive vectors that use the same vector of b
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.row_elements;
    const uint b_width = args.width - args.a_width;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint vector = i / args.width, at = i % args.width;
        floats(args.y).v[i] = at < args.a_width
                                  ? floats(args.a).v[vector * args.a_width + at]
                                  : floats(args.b).v[vector / args.b_share * b_width + at - args.a_width];
    }
}
