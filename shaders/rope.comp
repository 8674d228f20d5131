#version 450
#extension GL_GOOGLE_include_directive : require
// Rotary position embedding, arXiv:2104.09864: (a, b) -> (a cos - b sin, a sin + b cos) for each
// pair of a head. Elements from n_rot on are copied.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint INTERLEAVED = 0;  // pairs (2i, 2i + 1); otherwise (i, i + n_rot / 2)
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, table, y;  // [rows, heads, width], [rows, n_rot / 2, 2]: cos, sin; y like x
    Rows rows;
    uint heads, width, n_rot;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.heads * args.width;
    const uint half_rot = args.n_rot / 2;
    Floats x = floats(args.x), table = floats(args.table), y = floats(args.y);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint at = i % args.width;
        if (at >= args.n_rot) {
            y.v[i] = x.v[i];
            continue;
        }
        const bool second = INTERLEAVED != 0 ? at % 2 == 1 : at >= half_rot;
        const uint pair = INTERLEAVED != 0 ? at / 2 : at % half_rot;
        const uint step = INTERLEAVED != 0 ? 1 : half_rot;
        const uint angle = i / (args.heads * args.width) * args.n_rot + 2 * pair;
        const float c = table.v[angle], s = table.v[angle + 1];
        y.v[i] = second ? x.v[i - step] * s + x.v[i] * c : x.v[i] * c - x.v[i + step] * s;
    }
}
