// Push constants of every dispatch, recorded once: the addresses of its arguments and of the frame.

layout(push_constant, scalar) uniform Push {
    Args args;
    Frame frame;
};

const uint SEQUENCES = 4;

uint64_t address(Ref ref) { return frame.base[ref.base] + ref.offset; }
Floats floats(Ref ref) { return Floats(address(ref)); }
Ints ints(Ref ref) { return Ints(address(ref)); }

uint rows_of(Rows rows) { return rows.count == 0 ? rows.fixed_rows : frame.rows[rows.count]; }
