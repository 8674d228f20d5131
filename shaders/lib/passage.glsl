// The tokens of a sequence in the microbatch, and its state before and after them. Both states may
// be the same row, so an invocation must only read and write its own elements of a state.

struct Passage {
    uint begin, end;  // tokens
    Floats from, to;
};

Passage passage(States states, uint sequence) {
    Ints begin = ints(states.token_begin);
    const uint64_t row_bytes = 4ul * states.elements;
    const uint64_t storage = address(states.storage);
    return Passage(uint(begin.v[sequence]), uint(begin.v[sequence + 1]),
                   Floats(storage + uint(ints(states.read_rows).v[sequence]) * row_bytes),
                   Floats(storage + uint(ints(states.write_rows).v[sequence]) * row_bytes));
}
