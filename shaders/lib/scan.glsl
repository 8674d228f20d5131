// What the scans share. Their states are a matrix [ROWS, columns] for each head; columns never meet, so an
// invocation takes one through its sequence's tokens. In storage a head's columns lie in tiles, one after
// the other, each [ROWS, 32] (the last as wide as what is left); a workgroup has a tile.
// Dispatch: tiles, sequences.

#include "lib/passage.glsl"

float s[ROWS];  // the column

// One token's step of it; what the token gets.
float step_column(uint token, uint head, uint column);

void main() {
    const uint columns = args.columns, heads = args.heads;
    const uint tiles_of_head = (columns + 31) / 32;
    const uint n = frame.rows[SEQUENCES];
    for (uint sequence = gl_WorkGroupID.y; sequence < n; sequence += gl_NumWorkGroups.y)
        for (uint tile = gl_WorkGroupID.x; tile < heads * tiles_of_head; tile += gl_NumWorkGroups.x) {
            const uint head = tile / tiles_of_head, first = tile % tiles_of_head * 32;
            const uint width = min(32, columns - first);
            if (gl_LocalInvocationIndex >= width)
                continue;
            const uint column = first + gl_LocalInvocationIndex;
            const uint at = (head * columns + first) * ROWS + gl_LocalInvocationIndex;
            Passage tokens = passage(args.states, sequence);
            for (uint i = 0; i < ROWS; ++i)
                s[i] = tokens.from.v[at + i * width];
            for (uint t = tokens.begin; t < tokens.end; ++t)
                floats(args.y).v[(t * heads + head) * columns + column] = step_column(t, head, column);
            for (uint i = 0; i < ROWS; ++i)
                tokens.to.v[at + i * width] = s[i];
        }
}
