#version 450
#extension GL_GOOGLE_include_directive : require
// Rotates the keys in row indices[i] of a cache by deltas[i] positions, in place and for i in
// order, so a row may be listed twice. A workgroup rotates one head of every row. Only blocks that
// hold some of the n_rot rotated elements are unpacked and written; if the cache holds a Hadamard
// transform of the heads, all blocks.
// Dispatch: heads.

const uint WORKGROUP = 64;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint TYPE = 0;        // plait::DType
layout(constant_id = 1) const uint INTERLEAVED = 0;
layout(constant_id = 2) const uint BLOCKS = 1;      // blocks of 32 elements to rewrite
layout(constant_id = 3) const uint HADAMARD = 0;    // elements of a block of the transform; 0: none
#include "lib/frame.glsl"
#include "lib/turns.glsl"
#include "lib/unpack.glsl"
#include "lib/pack.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref storage, indices, deltas;  // [storage rows, row_bytes], [moves] i32, [moves] i32
    Ref turns;                     // [n_rot / 2]: turns per position
    Rows moves;
    uint heads;
    uint head_bytes, row_bytes;
    uint offset;    // in bytes, from a head to its first block to rewrite
    uint before;    // elements of that block before the rotated ones
    uint n_rot;
    uint touched;   // elements in the blocks to rewrite, at most 32 * BLOCKS
    float magnitude;
    uint head_dim;  // elements of a head without padding
};
#include "lib/push.glsl"

shared float head[32 * BLOCKS];
shared float spread[32 * BLOCKS];  // used if HADAMARD is not 0

// Transforms the blocks of the head. All invocations call it.
void transform() {
    const float norm = inversesqrt(float(HADAMARD));
    for (uint i = gl_LocalInvocationIndex; i < args.head_dim; i += WORKGROUP) {
        const uint at = i % HADAMARD, first = i - at;
        float sum = 0.0;
        for (uint j = 0; j < HADAMARD; ++j)
            sum += (bitCount(at & j) & 1) == 0 ? head[first + j] : -head[first + j];
        spread[i] = sum * norm;
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < args.head_dim; i += WORKGROUP)
        head[i] = spread[i];
    barrier();
}

void rotate(uint pair, int delta) {
    const vec2 turn = cos_sin(uint64_t(int64_t(delta)) * Turns(address(args.turns)).v[pair]);
    const float c = turn.x * args.magnitude, s = turn.y * args.magnitude;
    const uint i = args.before + (INTERLEAVED != 0 ? 2 * pair : pair);
    const uint j = i + (INTERLEAVED != 0 ? 1 : args.n_rot / 2);
    const float a = head[i], b = head[j];
    head[i] = a * c - b * s;
    head[j] = a * s + b * c;
}

void main() {
    const uint n = rows_of(args.moves);
    const uint me = gl_LocalInvocationIndex;
    for (uint m = 0; m < n; ++m) {
        const int delta = ints(args.deltas).v[m];
        if (delta == 0 && args.magnitude == 1.0)
            continue;
        const uint64_t at = address(args.storage) + uint64_t(ints(args.indices).v[m]) * args.row_bytes +
                            gl_WorkGroupID.x * args.head_bytes + args.offset;
        for (uint g = me; g < 2 * BLOCKS; g += WORKGROUP) {
            float v[16];
            unpack(TYPE, at, g, v);
            for (uint i = 0; i < 16; ++i)
                head[16 * g + i] = v[i];
        }
        barrier();
        if (HADAMARD != 0)
            transform();
        for (uint pair = me; pair < args.n_rot / 2; pair += WORKGROUP)
            rotate(pair, delta);
        barrier();
        if (HADAMARD != 0)
            transform();
        for (uint b = me; b < BLOCKS; b += WORKGROUP) {
            float v[32];
            for (uint i = 0; i < 32; ++i)
                v[i] = head[32 * b + i];
            pack(TYPE, at + b * stride_of_32(TYPE), v, min(32, args.touched - 32 * b));
        }
        memoryBarrierBuffer();
        barrier();
    }
}
