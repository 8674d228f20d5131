#version 450
#extension GL_GOOGLE_include_directive : require
// The vectors of each row, mixed by a matrix of the row: y_i = sum over j, in order, of weights_ij
// x_j. Dispatch: elements / 256.

layout(local_size_x = 256) in;
#include "lib/frame.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref x, weights, y;  // [rows, inputs, width], [rows, outputs, inputs], [rows, outputs, width]
    Rows rows;
    uint inputs, outputs, width;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows) * args.outputs * args.width;
    Floats x = floats(args.x), weights = floats(args.weights);
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint vector = i / args.width, column = i % args.width;
        const uint row = vector / args.outputs;
        float total = 0.0;
        for (uint j = 0; j < args.inputs; ++j)
            total = fma(weights.v[vector * args.inputs + j],
                        x.v[(row * args.inputs + j) * args.width + column], total);
        floats(args.y).v[i] = total;
    }
}
