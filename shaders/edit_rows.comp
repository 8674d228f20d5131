#version 450
#extension GL_GOOGLE_include_directive : require
// y = x, with some rows changed by rows that the caller gives; see ops::EditRows in cpp/graph.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, rows, picks, y;  // x, y: [n, width]; picks: [n, 2] i32
    Rows n;
    uint width;
    uint by_row;  // if not 0, row i of x is combined with row i of `rows`
};
#include "lib/push.glsl"

float changed(float x, float row, int change) {  // plait::RowChange
    switch (change) {
    case 0: return x + row;
    case 1: return row;
    default: return x * row;
    }
}

void main() {
    const uint n = rows_of(args.n) * args.width;
    Floats x = floats(args.x), rows = floats(args.rows), y = floats(args.y);
    Ints picks = ints(args.picks);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = i / args.width;
        const int first = picks.v[2 * row];
        if (first < 0) {
            y.v[i] = x.v[i];
            continue;
        }
        const uint at = args.by_row != 0 ? i : uint(first) + i % args.width;
        y.v[i] = changed(x.v[i], rows.v[at], picks.v[2 * row + 1]);
    }
}
