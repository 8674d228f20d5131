#version 450
#extension GL_GOOGLE_include_directive : require
// The selective scan of Mamba, arXiv:2312.00752, algorithm 2. Each channel has a state h [k]:
//   h = exp(dt a) h + (dt x) b,  y = c h + d x

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint ROWS = 16;  // size of a channel's state: k
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref x, dt, y;  // [n, channels]
    Ref a, d;      // [channels, k], [channels]
    Ref b, c;      // [n, k]
    uint heads;    // always 1
    uint columns;  // channels
};
#include "lib/push.glsl"
#include "lib/scan.glsl"

float step_column(uint token, uint head, uint column) {
    const float x = floats(args.x).v[token * args.columns + column];
    const float dt = floats(args.dt).v[token * args.columns + column];
    Floats a = floats(args.a), b = floats(args.b), c = floats(args.c);
    float y = 0.0;
    for (uint i = 0; i < ROWS; ++i) {
        s[i] = fma(exp(dt * a.v[column * ROWS + i]), s[i], b.v[token * ROWS + i] * (dt * x));
        y = fma(c.v[token * ROWS + i], s[i], y);
    }
    return fma(floats(args.d).v[column], x, y);
}
