#version 450
#extension GL_GOOGLE_include_directive : require
// Causal convolution, channel by channel: y_t = sum_j weight[:, j] x_(t-TAPS+1+j) + bias. Mamba,
// arXiv:2312.00752, section 3.4. The state [TAPS - 1, channels] holds the inputs before the
// microbatch, oldest first. An invocation computes one channel for all tokens of a sequence.
// Dispatch: channels / 64, sequences.

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TAPS = 4;
#include "lib/frame.glsl"
#include "lib/states.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    States states;
    Ref x, y;          // [n, channels]
    Ref weight, bias;  // [channels, TAPS], [channels]
    uint channels;
    uint has_bias;
};
#include "lib/push.glsl"
#include "lib/passage.glsl"

void main() {
    const uint n = frame.rows[SEQUENCES], channels = args.channels;
    const uint channel = gl_GlobalInvocationID.x;
    if (channel >= channels)
        return;
    float weight[TAPS];
    for (uint j = 0; j < TAPS; ++j)
        weight[j] = floats(args.weight).v[channel * TAPS + j];
    const float bias = args.has_bias != 0 ? floats(args.bias).v[channel] : 0.0;
    for (uint sequence = gl_WorkGroupID.y; sequence < n; sequence += gl_NumWorkGroups.y) {
        Passage tokens = passage(args.states, sequence);
        float recent[TAPS];  // the inputs that the kernel covers, oldest first
        for (uint j = 1; j < TAPS; ++j)
            recent[j] = tokens.from.v[(j - 1) * channels + channel];
        for (uint t = tokens.begin; t < tokens.end; ++t) {
            for (uint j = 1; j < TAPS; ++j)
                recent[j - 1] = recent[j];
            recent[TAPS - 1] = floats(args.x).v[t * channels + channel];
            float sum = bias;
            for (uint j = 0; j < TAPS; ++j)
                sum = fma(weight[j], recent[j], sum);
            floats(args.y).v[t * channels + channel] = sum;
        }
        for (uint j = 1; j < TAPS; ++j)
            tokens.to.v[(j - 1) * channels + channel] = recent[j];
    }
}
