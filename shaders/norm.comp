#version 450
#extension GL_GOOGLE_include_directive : require
// Norms and sums of vectors. A workgroup computes one vector.
//   rms_norm    x / sqrt(mean(x^2) + epsilon) * w + b                    arXiv:1910.07467
//   layer_norm  (x - mean(x)) / sqrt(variance(x) + epsilon) * w + b      arXiv:1607.06450
//   l2_norm     x / max(sqrt(sum(x^2)), epsilon)
//   row_sum     sum(x), one element per vector
// Dispatch: vectors.

const uint WORKGROUP = 128;
layout(local_size_x = WORKGROUP) in;
layout(constant_id = 0) const uint KIND = 0;  // 0 rms_norm, 1 layer_norm, 2 l2_norm, 3 row_sum
#include "lib/frame.glsl"
#include "lib/reduce.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, y;          // [vectors, width]
    Ref weight, bias;  // [weights, width]; vector i uses row i % weights
    Rows rows;
    uint vectors_per_row;
    uint width;
    uint weights;
    uint has_weight, has_bias;
    float epsilon;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.vectors_per_row;
    const uint width = args.width;
    Floats x = floats(args.x), y = floats(args.y);
    Floats weight = floats(args.weight), bias = floats(args.bias);
    for (uint vector = gl_WorkGroupID.x; vector < n; vector += gl_NumWorkGroups.x) {
        const uint first = vector * width;
        float sum = 0.0;
        float mean = 0.0;
        if (KIND == 1 || KIND == 3) {
            for (uint i = gl_LocalInvocationIndex; i < width; i += WORKGROUP)
                sum += x.v[first + i];
            sum = workgroup_sum(sum);
            mean = sum / float(width);
        }
        if (KIND == 3) {
            if (gl_LocalInvocationIndex == 0)
                y.v[vector] = sum;
            continue;
        }
        float squares = 0.0;
        for (uint i = gl_LocalInvocationIndex; i < width; i += WORKGROUP) {
            const float d = x.v[first + i] - mean;
            squares += d * d;
        }
        squares = workgroup_sum(squares);
        const float scale = KIND == 2 ? 1.0 / max(sqrt(squares), args.epsilon)
                                      : 1.0 / sqrt(squares / float(width) + args.epsilon);
        const uint weight_row = args.has_weight != 0 ? vector % args.weights * width : 0;
        for (uint i = gl_LocalInvocationIndex; i < width; i += WORKGROUP) {
            float value = (x.v[first + i] - mean) * scale;
            if (args.has_weight != 0)
                value *= weight.v[weight_row + i];
            if (args.has_bias != 0)
                value += bias.v[weight_row + i];
            y.v[first + i] = value;
        }
    }
}
