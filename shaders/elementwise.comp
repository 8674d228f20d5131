#version 450
#extension GL_GOOGLE_include_directive : require
// All elementwise operations with one or two operands. The formulas are documented with the
// operations in cpp/graph.
// Dispatch: elements / 256.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint OP = 0;          // as numbered in cpp/backend/vulkan/ops/elementwise.cpp
layout(constant_id = 1) const uint ACTIVATION = 0;  // plait::Activation
#include "lib/frame.glsl"
#include "lib/activation.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref a, b, y;        // [rows, row_elements]; the shape of b depends on `width` and `share`
    Rows rows;
    uint row_elements;
    uint width;         // if not 0, b has this many elements, and starts again after them
    uint share;         // if not 0, consecutive elements of a that use the same element of b
    float number, second;  // parameters of the operation, see result()
};
#include "lib/push.glsl"

float result(float a, float b) {
    switch (OP) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return args.number * a + args.second;
    case 4: return args.number * tanh_of(a / args.number);
    case 5: return activation(ACTIVATION, a);
    case 6: return activation(ACTIVATION, a) * b;
    case 8: return clamp(a, -args.number, args.number);
    default: {
        const float g = min(a, args.second);
        return g * sigmoid(args.number * g) * (clamp(b, -args.second, args.second) + 1.0);
    }
    }
}

void main() {
    const bool is_binary = OP < 3 || OP == 6 || OP == 7;
    const uint n = rows_of(args.rows) * args.row_elements;
    Floats a = floats(args.a), b = floats(args.b), y = floats(args.y);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        uint j = args.share > 0 ? i / args.share : i;
        if (args.width > 0)
            j %= args.width;
        y.v[i] = result(a.v[i], is_binary ? b.v[j] : 0.0);
    }
}
