// Main function of the recurrent scans. The state of a head is a matrix [ROWS, columns] whose
// columns are independent, so an invocation computes one column for all tokens of a sequence. The
// columns of a head are stored in tiles of [ROWS, 32], the last of which may be narrower. A
// workgroup computes one tile.
// Dispatch: tiles, sequences.

#include "lib/passage.glsl"

float s[ROWS];  // the column of this invocation

// Updates `s` with one token and returns the token's output. Defined by the including shader.
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
