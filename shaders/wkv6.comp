#version 450
#extension GL_GOOGLE_include_directive : require
// RWKV-6, arXiv:2404.05892. Each head has a state S [keys, values]:
//   y = r (S + diag(u) k^T v),  S = diag(w) S + k^T v

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint ROWS = 16;  // rows of a head's state: keys
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref r, k, v, w, y;  // [n, heads, ROWS]
    Ref u;              // [heads, ROWS]
    uint heads;
    uint columns;       // ROWS
};
#include "lib/push.glsl"
#include "lib/scan.glsl"

float step_column(uint token, uint head, uint column) {
    const uint first = (token * args.heads + head) * ROWS;
    const float v = floats(args.v).v[first + column];
    Floats r = floats(args.r), k = floats(args.k), w = floats(args.w), u = floats(args.u);
    float y = 0.0, own = 0.0;
    for (uint i = 0; i < ROWS; ++i) {
        const float r_i = r.v[first + i], k_i = k.v[first + i];
        y = fma(r_i, s[i], y);
        own = fma(r_i * u.v[head * ROWS + i], k_i, own);
        s[i] = fma(w.v[first + i], s[i], k_i * v);
    }
    return fma(own, v, y);
}
