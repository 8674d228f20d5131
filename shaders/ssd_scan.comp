#version 450
#extension GL_GOOGLE_include_directive : require
// The scan of Mamba-2, arXiv:2405.21060. Each head has one decay and a state h [k, p]:
//   h = exp(dt a) h + (dt x) b^T,  y = h c + d x

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint ROWS = 16;  // rows of a head's state: k
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref x, y;      // [n, heads, p]
    Ref dt;        // [n, heads]
    Ref a, d;      // [heads]
    Ref b, c;      // [n, groups, k]
    uint heads;
    uint columns;  // p
    uint groups;   // heads of a group share b and c
};
#include "lib/push.glsl"
#include "lib/scan.glsl"

float step_column(uint token, uint head, uint column) {
    const float x = floats(args.x).v[(token * args.heads + head) * args.columns + column];
    const float dt = floats(args.dt).v[token * args.heads + head];
    const float decay = exp(dt * floats(args.a).v[head]);
    const uint first = (token * args.groups + head / (args.heads / args.groups)) * ROWS;
    Floats b = floats(args.b), c = floats(args.c);
    float y = 0.0;
    for (uint i = 0; i < ROWS; ++i) {
        s[i] = fma(decay, s[i], b.v[first + i] * (dt * x));
        y = fma(c.v[first + i], s[i], y);
    }
    return fma(floats(args.d).v[head], x, y);
}
