#version 450
#extension GL_GOOGLE_include_directive : require
// RWKV-7, arXiv:2503.14456. Each head has a state S [values, keys]:
//   S = S diag(w) + (S a^T) b + v^T k,  y = S r^T

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint ROWS = 16;  // keys of a head's state
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref r, w, k, v, a, b, y;  // [n, heads, ROWS]
    uint heads;
    uint columns;             // values: ROWS
};
#include "lib/push.glsl"
#include "lib/scan.glsl"

float step_column(uint token, uint head, uint column) {
    const uint first = (token * args.heads + head) * ROWS;
    const float v = floats(args.v).v[first + column];
    Floats r = floats(args.r), w = floats(args.w), k = floats(args.k);
    Floats a = floats(args.a), b = floats(args.b);
    float s_a = 0.0;
    for (uint i = 0; i < ROWS; ++i)
        s_a = fma(a.v[first + i], s[i], s_a);
    float y = 0.0;
    for (uint i = 0; i < ROWS; ++i) {
        s[i] = fma(w.v[first + i], s[i], fma(b.v[first + i], s_a, k.v[first + i] * v));
        y = fma(r.v[first + i], s[i], y);
    }
    return y;
}
