#version 450
#extension GL_GOOGLE_include_directive : require
// Reads row tokens[i] of a table of any weight type, as floats.
// Dispatch: groups of 16 elements / 64, rows.

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;  // plait::DType
#include "lib/frame.glsl"
#include "lib/unpack.glsl"

layout(buffer_reference, scalar) readonly buffer Args {
    Ref tokens, y;  // [rows], [rows, columns]
    uint64_t table;
    uint64_t row_bytes;
    Rows rows;
    uint columns;
};
#include "lib/push.glsl"

void main() {
    const uint n = rows_of(args.rows);
    const uint group = gl_GlobalInvocationID.x;
    if (group * GROUP >= args.columns)
        return;
    const uint columns = min(GROUP, args.columns - group * GROUP);
    for (uint row = gl_WorkGroupID.y; row < n; row += gl_NumWorkGroups.y) {
        const uint token = uint(ints(args.tokens).v[row]);
        float v[16];
        unpack(TYPE, args.table + token * args.row_bytes, group, v);
        Floats y = Floats(address(args.y) + 4ul * (uint64_t(row) * args.columns + group * GROUP));
        for (uint i = 0; i < columns; ++i)
            y.v[i] = v[i];
    }
}
