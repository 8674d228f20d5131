#version 450
#extension GL_GOOGLE_include_directive : require
// The gated delta rule, arXiv:2412.06464, with S [key_dim, value_dim] for each head:
//   S = exp(g) S;  S += k^T beta (v - k S);  y = q S

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint ROWS = 16;  // rows of a head's state: key_dim
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref q, k;        // [n, key_heads, ROWS]
    Ref v, y;        // [n, heads, columns]
    Ref g, beta;     // [n, heads]
    uint heads;
    uint columns;    // value_dim
    uint key_heads;  // each is shared by heads / key_heads heads
    uint tiled;      // if not 0, head i uses key head i mod key_heads
};
#include "lib/push.glsl"
#include "lib/scan.glsl"

float step_column(uint token, uint head, uint column) {
    const uint of_head = token * args.heads + head;
    const uint key_head =
        args.tiled != 0 ? head % args.key_heads : head / (args.heads / args.key_heads);
    const uint first = (token * args.key_heads + key_head) * ROWS;
    const float v = floats(args.v).v[of_head * args.columns + column];
    const float decay = exp(floats(args.g).v[of_head]);
    Floats q = floats(args.q), k = floats(args.k);
    float k_s = 0.0;
    for (uint i = 0; i < ROWS; ++i)
        k_s = fma(k.v[first + i], s[i], k_s);
    const float delta = floats(args.beta).v[of_head] * (v - decay * k_s);
    float y = 0.0;
    for (uint i = 0; i < ROWS; ++i) {
        s[i] = fma(decay, s[i], k.v[first + i] * delta);
        y = fma(q.v[first + i], s[i], y);
    }
    return y;
}
