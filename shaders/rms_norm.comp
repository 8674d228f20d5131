#version 450
#extension GL_GOOGLE_include_directive : require
// RMSNorm, arXiv:1910.07467: y = x / sqrt(mean(x^2) + epsilon) * w. One workgroup a row.
// Twin: cpp/backend/cpu/kernels/rms_norm.cpp. Dispatch: (rows, 1, 1).

const uint WORKGROUP = 256;
layout(local_size_x = 256) in;
#include "lib/reduce.glsl"

layout(binding = 0) readonly buffer X { float x[]; };   // [rows, width]
layout(binding = 1) readonly buffer W { float w[]; };   // [width]
layout(binding = 2) writeonly buffer Y { float y[]; };  // [rows, width]

layout(push_constant) uniform Params {
    uint width;
    float epsilon;
};

void main() {
    const uint row = gl_WorkGroupID.x * width;
    float squares = 0.0;
    for (uint i = gl_LocalInvocationIndex; i < width; i += WORKGROUP)
        squares += x[row + i] * x[row + i];

    const float scale = inversesqrt(workgroup_sum(squares) / float(width) + epsilon);
    for (uint i = gl_LocalInvocationIndex; i < width; i += WORKGROUP)
        y[row + i] = x[row + i] * scale * w[i];
}
