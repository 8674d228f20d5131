#version 450
#extension GL_GOOGLE_include_directive : require
// The weighted sum of the outputs of a row's experts: y = sum of weight * x, in the order of the
// routes.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, routes, y;  // [rows, used, width], [rows, used, 2]: expert, weight as float bits; [rows, width]
    Rows rows;
    uint used, width;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.width;
    Floats x = floats(args.x), routes = floats(args.routes);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = i / args.width, column = i % args.width;
        float total = 0.0;
        for (uint u = row * args.used; u < (row + 1) * args.used; ++u)
            total = fma(routes.v[2 * u + 1], x.v[u * args.width + column], total);
        floats(args.y).v[i] = total;
    }
}
