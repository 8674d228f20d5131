#version 450
#extension GL_GOOGLE_include_directive : require
// Copies elements [begin, begin + width) of each vector of x.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, y;  // [vectors, x_width], [vectors, width]
    Rows rows;
    uint row_elements;  // elements per row of y
    uint x_width, begin, width;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.row_elements;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x)
        floats(args.y).v[i] =
            floats(args.x).v[i / args.width * args.x_width + args.begin + i % args.width];
}
