#version 450
#extension GL_GOOGLE_include_directive : require
// Row to[i] = row from[i], one after the other: an invocation has the same bytes of every row, so a row
// that is both source and target keeps its turn. Twin: cpp/backend/cpu/kernels/rows/rows.cpp.
// Dispatch: halves of a row / 64.

layout(local_size_x = 64) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref storage;   // [., row_bytes]
    Ref from, to;  // [moves] i32
    Rows moves;
    uint row_bytes;  // even: no type of a cache has odd blocks
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
