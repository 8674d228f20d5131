// Cosine and sine of an angle given as a 64-bit fraction of a full turn. The integer product
// position * frequency wraps around by itself, so precision does not depend on the length of the
// context.

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Turns { uint64_t v[]; };

// Minimax polynomials on [-1/8, 1/8] of a turn, from sinf.c of the Cephes library (Moshier).
vec2 cos_sin(uint64_t turns) {
    const uint top = uint(turns >> 32);
    const uint quarter = (top + 0x20000000u) >> 30;               // the nearest multiple of a quarter turn
    const int rest = int(top - (quarter << 30));                  // the difference, at most an eighth of a turn
    const float x = float(rest) * (6.283185307179586 / 4294967296.0);
    const float z = x * x;
    const float s = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
    const float c = 1.0 - 0.5 * z +
                    z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5));
    switch (quarter & 3u) {
    case 0: return vec2(c, s);
    case 1: return vec2(-s, c);
    case 2: return vec2(-c, -s);
    default: return vec2(s, -c);
    }
}
