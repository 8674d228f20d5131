#version 450
#extension GL_GOOGLE_include_directive : require
// Writes row i of x to row indices[i] of a cache, in the type of the cache. Each head is padded
// with zeros to whole blocks. An invocation packs 32 elements.
// Dispatch: rows * heads * blocks / 64.

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
#include "lib/frame.glsl"
#include "lib/unpack.glsl"
#include "lib/pack.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref storage, x, indices;  // [storage rows, row_bytes], [rows, heads, width], [rows] i32
    Rows rows;
    uint heads, width;
    uint head_elements;  // stored elements of a head: width, padded to whole blocks
    uint head_bytes, row_bytes;
};
#include "lib/push.glsl"

void main() {
    const uint blocks = (args.head_elements + 31) / 32;  // per head
    const uint n = rows_of(args.rows) * args.heads * blocks;
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = i / (args.heads * blocks), head = i / blocks % args.heads;
        const uint first = i % blocks * 32;
        Floats x = Floats(address(args.x) + 4ul * ((row * args.heads + head) * args.width + first));
        float v[32];
        for (uint j = 0; j < 32; ++j)
            v[j] = first + j < args.width ? x.v[j] : 0.0;
        const uint64_t target = address(args.storage) +
                                uint64_t(ints(args.indices).v[row]) * args.row_bytes +
                                head * args.head_bytes + i % blocks * stride_of_32(TYPE);
        pack(TYPE, target, v, min(32, args.head_elements - first));
    }
}
