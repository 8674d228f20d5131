#version 450
#extension GL_GOOGLE_include_directive : require
// Token shift of RWKV, arXiv:2305.13048: y_t = x_(t-1). The state is the last x. An invocation
// computes one channel for all tokens of a sequence.
// Dispatch: width / 64, sequences.

layout(local_size_x = 64) in;
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref x, y;  // [n, width]
    uint width;
};
#include "lib/push.glsl"
#include "lib/passage.glsl"

void main() {
    const uint n = frame.rows[SEQUENCES];
    const uint channel = gl_GlobalInvocationID.x;
    if (channel >= args.width)
        return;
    for (uint sequence = gl_WorkGroupID.y; sequence < n; sequence += gl_NumWorkGroups.y) {
        Passage tokens = passage(args.states, sequence);
        float previous = tokens.from.v[channel];
        for (uint t = tokens.begin; t < tokens.end; ++t) {
            const float x = floats(args.x).v[t * args.width + channel];
            floats(args.y).v[t * args.width + channel] = previous;
            previous = x;
        }
        tokens.to.v[channel] = previous;
    }
}
