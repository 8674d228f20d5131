#version 450
#extension GL_GOOGLE_include_directive : require
// y_t = sum_j weight[:, j] x_(t-TAPS+1+j) + bias, channel by channel; what came before the piece is in the
// state, [TAPS - 1, channels], the oldest first. Mamba, arXiv:2312.00752, section 3.4. An invocation takes a
// channel through a sequence's tokens. Twin: cpp/backend/cpu/kernels/recurrence/short_conv.cpp.
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
        float recent[TAPS];  // the last inputs, this token's last
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
