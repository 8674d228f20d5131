#version 450
#extension GL_GOOGLE_include_directive : require
// Copies row from[i] to row to[i], for i in order. An invocation copies the same two bytes of every
// row, so the order holds for rows that are both source and target.
// Dispatch: row_bytes / 2 / 64.

layout(local_size_x = 64) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref storage;   // [storage rows, row_bytes]
    Ref from, to;  // [moves] i32
    Rows moves;
    uint row_bytes;  // even, since no cache type has blocks of odd size
};
#include "lib/push.glsl"

void main() {
    const uint64_t at = 2ul * gl_GlobalInvocationID.x;
    if (at >= args.row_bytes)
        return;
    const uint64_t storage = address(args.storage) + at;
    const uint n = rows_of(args.moves);
    for (uint i = 0; i < n; ++i) {
        const uint64_t source = storage + uint64_t(ints(args.from).v[i]) * args.row_bytes;
        Halves(storage + uint64_t(ints(args.to).v[i]) * args.row_bytes).v[0] = Halves(source).v[0];
    }
}
