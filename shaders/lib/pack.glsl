// Encodes floats in the types of a cache, 32 elements at a time, by the arithmetic of cpp/tensor/blocks/closest.h. Requires
// lib/unpack.glsl.

// Rounds to nearest, ties to even, as cpp/tensor/half.h. The rounding of packHalf2x16 is not
// specified.
uint f16_bits(float value) {
    const uint bits = floatBitsToUint(value);
    const uint sign = (bits >> 16) & 0x8000u;
    const uint magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    if (magnitude >= 0x477FF000u)
        return sign | 0x7C00u;
    if (magnitude >= 0x38800000u)
        return sign | (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    if (magnitude <= 0x33000000u)
        return sign;
    const uint shift = 126u - (magnitude >> 23);
    const uint fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
    return sign | (fraction + (1u << (shift - 1)) - 1u + ((fraction >> shift) & 1u)) >> shift;
}

uint bf16_bits(float value) {
    const uint bits = floatBitsToUint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
}

float reciprocal(float scale) { return scale != 0.0 ? 1.0 / scale : 0.0; }
uint truncated(float value, int max_code) { return value > 0.0 ? uint(min(value, float(max_code))) : 0u; }

// Returns the value of largest magnitude, with its sign; the first one if there are several.
float extreme(float v[32]) {
    float largest = 0.0;
    for (uint i = 0; i < 32; ++i)
        if (abs(largest) < abs(v[i])) largest = v[i];
    return largest;
}

void write_half(uint64_t at, uint bits) { Halves(at).v[0] = uint16_t(bits); }
void write_byte(uint64_t at, uint bits) { Bytes(at).v[0] = uint8_t(bits); }

void pack_q8_0(uint64_t at, float v[32]) {
    const float scale = abs(extreme(v)) / 127.0;
    const float inverse = reciprocal(scale);
    write_half(at, f16_bits(scale));
    for (uint i = 0; i < 32; ++i) {
        const float x = v[i] * inverse;  // rounded to nearest, ties away from zero
        write_byte(at + 2 + i, uint(int(sign(x) * floor(min(abs(x), 127.0) + 0.5))) & 255u);
    }
}

// The fit of levels to 32 values, as cpp/tensor/blocks/closest.h: of a few attempts, the one whose levels explain the most
// is kept, with the least-squares scale for them. Codes are the levels plus a constant, or indices of levels.
const float MAX_FLOAT = 3.402823466e+38;

const uint ZEROS[32] = uint[32](0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0);

struct Fit {
    float explained;  // 0: no fit
    float scale, minimum;
    uint codes[32];
};

// Adds terms in the order of the CPU.
struct Lanes { float parts[8]; };
float sum(Lanes lanes) {
    float total = 0.0;
    for (uint i = 0; i < 8; ++i) total += lanes.parts[i];
    return total;
}
Lanes no_terms() { return Lanes(float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)); }

bool is_better(float explained, Fit fit) { return explained > fit.explained && explained <= MAX_FLOAT; }

// Q4_0 and Q5_0: levels are codes minus `middle`.
void attempt_signed(float v[32], float reach, float middle, float largest, inout Fit fit) {
    const float inverse = reciprocal(largest / reach);
    Lanes products = no_terms(), squares = no_terms();
    uint codes[32];
    for (uint i = 0; i < 32; ++i) {
        const float level = roundEven(clamp(v[i] * inverse, -middle, middle - 1.0));
        codes[i] = uint(level + middle);
        products.parts[i % 8] += level * v[i];
        squares.parts[i % 8] += level * level;
    }
    const float product = sum(products), square = sum(squares);
    const float explained = product * product / square;
    if (is_better(explained, fit)) fit = Fit(explained, product / square, 0.0, codes);
}

// Writes codes of 4 or 5 bits; the fifth bits stand before the others.
void write_codes(uint64_t at, uint codes[32], bool five) {
    uint fifth = 0;
    for (uint j = 0; j < 16; ++j) {
        const uint low = codes[j], high = codes[j + 16];
        write_byte(at + (five ? 4 : 0) + j, (low & 15u) | (high & 15u) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    if (five) {
        write_half(at, fifth & 0xFFFFu);
        write_half(at + 2, fifth >> 16);
    }
}

void pack_signed(uint type, uint64_t at, float v[32]) {
    const float middle = type == Q4_0 ? 8.0 : 16.0;
    const float largest = extreme(v);
    Fit fit = Fit(0.0, 0.0, 0.0, ZEROS);
    attempt_signed(v, -middle - 0.6, middle, largest, fit);
    attempt_signed(v, -middle - 0.2, middle, largest, fit);
    attempt_signed(v, -middle + 0.2, middle, largest, fit);
    attempt_signed(v, -middle + 1.0, middle, largest, fit);
    if (fit.explained == 0.0) {  // the value of largest magnitude becomes -middle
        fit.scale = largest / -middle;
        const float inverse = reciprocal(fit.scale);
        for (uint i = 0; i < 32; ++i)
            fit.codes[i] = truncated(v[i] * inverse + middle + 0.5, int(2.0 * middle) - 1);
    }
    write_half(at, f16_bits(fit.scale));
    write_codes(at + 2, fit.codes, type == Q5_0);
}

// Q4_1 and Q5_1: values are scale * code + minimum. `span` is the number of steps from the smallest value to the largest.
void attempt_line(float v[32], float span, float max_code, vec2 range, inout Fit fit) {
    const float centre = 0.5 * range.x + 0.5 * range.y, inverse = reciprocal((range.y - range.x) / span);
    Lanes x = no_terms(), q = no_terms(), xq = no_terms(), qq = no_terms();
    uint codes[32];
    for (uint i = 0; i < 32; ++i) {
        const float value = v[i] - centre;
        const float code = roundEven(clamp(value * inverse + 0.5 * max_code, 0.0, max_code));
        codes[i] = uint(code);
        x.parts[i % 8] += value;
        q.parts[i % 8] += code;
        xq.parts[i % 8] += value * code;
        qq.parts[i % 8] += code * code;
    }
    const float sum_x = sum(x), sum_q = sum(q);
    const float covariance = 32.0 * sum(xq) - sum_x * sum_q;
    const float variance = 32.0 * sum(qq) - sum_q * sum_q;
    const float explained = covariance * covariance / variance;
    if (!is_better(explained, fit)) return;
    const float scale = covariance / variance;
    fit = Fit(explained, scale, centre + (sum_x - scale * sum_q) / 32.0, codes);
}

void pack_ranged(uint type, uint64_t at, float v[32]) {
    const float max_code = type == Q4_1 ? 15.0 : 31.0;
    vec2 range = vec2(MAX_FLOAT, -MAX_FLOAT);
    for (uint i = 0; i < 32; ++i) {
        range.x = v[i] < range.x ? v[i] : range.x;
        range.y = v[i] > range.y ? v[i] : range.y;
    }
    Fit fit = Fit(0.0, 0.0, 0.0, ZEROS);
    attempt_line(v, max_code - 0.6, max_code, range, fit);
    attempt_line(v, max_code, max_code, range, fit);
    attempt_line(v, max_code + 0.3, max_code, range, fit);
    attempt_line(v, max_code + 0.9, max_code, range, fit);
    if (fit.explained == 0.0) {  // code 0 is the smallest value
        fit.scale = (range.y - range.x) / max_code;
        fit.minimum = range.x;
        const float inverse = reciprocal(fit.scale);
        for (uint i = 0; i < 32; ++i)
            fit.codes[i] = truncated((v[i] - range.x) * inverse + 0.5, int(max_code));
    }
    write_half(at, f16_bits(fit.scale));
    write_half(at + 2, f16_bits(fit.minimum));
    write_codes(at + 4, fit.codes, type == Q5_1);
}

uint nearest_level(float value) {
    uint index = 0;
    for (uint i = 1; i < 16; ++i)
        if (2.0 * value >= IQ4_LEVELS[i - 1] + IQ4_LEVELS[i]) ++index;
    return index;
}

void attempt_levels(float v[32], float reach, float largest, inout Fit fit) {
    const float inverse = reciprocal(largest / reach);
    Lanes products = no_terms(), squares = no_terms();
    uint codes[32];
    for (uint i = 0; i < 32; ++i) {
        codes[i] = nearest_level(v[i] * inverse);
        const float level = IQ4_LEVELS[codes[i]];
        products.parts[i % 8] += level * v[i];
        squares.parts[i % 8] += level * level;
    }
    const float product = sum(products), square = sum(squares);
    const float explained = product * product / square;
    if (is_better(explained, fit)) fit = Fit(explained, product / square, 0.0, codes);
}

// Without a fit, the block is zero.
void pack_iq4_nl(uint64_t at, float v[32]) {
    const float largest = extreme(v);
    Fit fit = Fit(0.0, 0.0, 0.0, ZEROS);
    attempt_levels(v, -135.0, largest, fit);
    attempt_levels(v, -127.0, largest, fit);
    attempt_levels(v, -119.0, largest, fit);
    attempt_levels(v, -111.0, largest, fit);
    attempt_levels(v, 113.0, largest, fit);
    write_half(at, f16_bits(fit.scale));
    write_codes(at + 2, fit.codes, false);
}

uint element_bytes(uint type) { return type == F32 ? 4 : 2; }
bool is_plain(uint type) { return type <= BF16; }
// Returns the size of 32 stored elements in bytes.
uint stride_of_32(uint type) { return is_plain(type) ? 32 * element_bytes(type) : bytes_of_32(type); }

// Writes `count` elements at address `at`. Block types are always written as 32 elements.
void pack(uint type, uint64_t at, float v[32], uint count) {
    switch (type) {
    case F32:
        for (uint i = 0; i < count; ++i) Floats(at).v[i] = v[i];
        break;
    case F16:
        for (uint i = 0; i < count; ++i) write_half(at + 2 * i, f16_bits(v[i]));
        break;
    case BF16:
        for (uint i = 0; i < count; ++i) write_half(at + 2 * i, bf16_bits(v[i]));
        break;
    case Q8_0: pack_q8_0(at, v); break;
    case Q4_0:
    case Q5_0: pack_signed(type, at, v); break;
    case Q4_1:
    case Q5_1: pack_ranged(type, at, v); break;
    default: pack_iq4_nl(at, v); break;
    }
}
