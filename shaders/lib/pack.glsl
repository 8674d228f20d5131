// Encodes floats in the types of a cache, 32 elements at a time. The results are bit-identical to
// those of the encoders in cpp/tensor/blocks. Requires lib/unpack.glsl.

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

// Q4_0 and Q5_0: codes are centred on `middle`, and the value of largest magnitude is encoded as
// -middle.
void pack_signed(uint type, uint64_t at, float v[32]) {
    const float middle = type == Q4_0 ? 8.0 : 16.0;
    const float scale = extreme(v) / -middle;
    const float inverse = reciprocal(scale);
    write_half(at, f16_bits(scale));
    const uint64_t nibbles = at + (type == Q4_0 ? 2 : 6);
    uint fifth = 0;
    for (uint j = 0; j < 16; ++j) {
        const uint low = truncated(v[j] * inverse + middle + 0.5, int(2.0 * middle) - 1);
        const uint high = truncated(v[j + 16] * inverse + middle + 0.5, int(2.0 * middle) - 1);
        write_byte(nibbles + j, (low & 15u) | (high & 15u) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    if (type == Q5_0) {
        write_half(at + 2, fifth & 0xFFFFu);
        write_half(at + 4, fifth >> 16);
    }
}

// Q4_1 and Q5_1: code 0 is the smallest value.
void pack_ranged(uint type, uint64_t at, float v[32]) {
    const int max_code = type == Q4_1 ? 15 : 31;
    float min_value = 3.402823466e+38, max_value = -3.402823466e+38;
    for (uint i = 0; i < 32; ++i) {
        min_value = v[i] < min_value ? v[i] : min_value;
        max_value = v[i] > max_value ? v[i] : max_value;
    }
    const float scale = (max_value - min_value) / float(max_code);
    const float inverse = reciprocal(scale);
    write_half(at, f16_bits(scale));
    write_half(at + 2, f16_bits(min_value));
    const uint64_t nibbles = at + (type == Q4_1 ? 4 : 8);
    uint fifth = 0;
    for (uint j = 0; j < 16; ++j) {
        const uint low = truncated((v[j] - min_value) * inverse + 0.5, max_code);
        const uint high = truncated((v[j + 16] - min_value) * inverse + 0.5, max_code);
        write_byte(nibbles + j, (low & 15u) | (high & 15u) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    if (type == Q5_1) {
        write_half(at + 4, fifth & 0xFFFFu);
        write_half(at + 6, fifth >> 16);
    }
}

uint nearest_level(float value) {
    uint index = 0;
    for (uint i = 1; i < 16; ++i)
        if (2.0 * value >= IQ4_LEVELS[i - 1] + IQ4_LEVELS[i]) ++index;
    return index;
}

// Codes are chosen with the scale that maps the value of largest magnitude to the first level. The
// stored scale then minimises the weighted squared error for these codes.
void pack_iq4_nl(uint64_t at, float v[32]) {
    const float largest = extreme(v);
    const bool zero = abs(largest) < 1e-15;
    const float inverse = zero ? 0.0 : 1.0 / (largest / IQ4_LEVELS[0]);
    float product = 0.0, square = 0.0;
    uint index[32];
    for (uint i = 0; i < 32; ++i) {
        index[i] = zero ? 0 : nearest_level(inverse * v[i]);
        const float level = IQ4_LEVELS[index[i]], weight = v[i] * v[i];
        product += weight * level * v[i];
        square += weight * level * level;
    }
    write_half(at, f16_bits(!zero && square > 0.0 ? product / square : 0.0));
    for (uint j = 0; j < 16; ++j)
        write_byte(at + 2 + j, index[j] | index[j + 16] << 4);
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
