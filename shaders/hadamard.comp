#version 450
#extension GL_GOOGLE_include_directive : require
// Each block of a head times the orthonormal Walsh-Hadamard matrix, whose element (i, j) is
// (-1)^popcount(i & j) / sqrt(block). Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, y;  // [rows, width]
    Rows rows;
    uint width, block;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.width;
    const float norm = inversesqrt(float(args.block));
    Floats x = floats(args.x), y = floats(args.y);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint at = i % args.block, first = i - at;
        float sum = 0.0;
        for (uint j = 0; j < args.block; ++j)
            sum += (bitCount(at & j) & 1) == 0 ? x.v[first + j] : -x.v[first + j];
        y.v[i] = sum * norm;
    }
}
