#version 450
#extension GL_GOOGLE_include_directive : require
// Cosine and sine of the rotation angle of every position and pair.
// Dispatch: rows * pairs / 64.

layout(local_size_x = 64) in;
#include "lib/frame.glsl"
#include "lib/turns.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref positions, y;  // [rows, axes] i32, [rows, pairs, 2]
    Ref turns, axis;   // [pairs]: turns per position; which axis of the position to use
    Rows rows;
    uint pairs;
    uint axes;
    float magnitude;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.pairs;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint pair = i % args.pairs;
        const uint axis = uint(ints(args.axis).v[pair]);
        const int64_t position = int64_t(ints(args.positions).v[i / args.pairs * args.axes + axis]);
        const vec2 value = cos_sin(uint64_t(position) * Turns(address(args.turns)).v[pair]);
        floats(args.y).v[2 * i] = value.x * args.magnitude;
        floats(args.y).v[2 * i + 1] = value.y * args.magnitude;
    }
}
