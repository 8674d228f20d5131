// Decodes stored elements to floats, in groups of 16 elements. The block layouts are documented in
// cpp/tensor/blocks. Types are numbered as plait::DType.

const uint GROUP = 16;
const uint F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 4, Q4_0 = 5, Q4_1 = 6, Q5_0 = 7, Q5_1 = 8, Q2_K = 9,
           Q3_K = 10, Q4_K = 11, Q5_K = 12, Q6_K = 13, IQ4_NL = 14, IQ4_XS = 15, MXFP4 = 16,
           EXPANDED = 17;  // this and all higher numbers: expanded by the host on upload

const float IQ4_LEVELS[16] = float[16](-127., -104., -83., -65., -49., -35., -22., -10., 1., 13.,
                                       25., 38., 53., 69., 89., 113.);
const float E2M1_DOUBLED[16] = float[16](0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4.,
                                         -6., -8., -12.);

uint byte_at(uint64_t at) { return uint(Bytes(at).v[0]); }
uint half_bits_at(uint64_t at) { return uint(Halves(at).v[0]); }
float half_at(uint64_t at) { return unpackHalf2x16(half_bits_at(at)).x; }
int signed_byte_at(uint64_t at) { return bitfieldExtract(int(byte_at(at)), 0, 8); }
uint word_at(uint64_t at) { return half_bits_at(at) | half_bits_at(at + 2) << 16; }

// Reads 16 bytes, two at a time. The address must be even, which excludes blocks of MXFP4.
void bytes_at(uint64_t at, out uint b[16]) {
    for (uint i = 0; i < 8; ++i) {
        const uint two = uint(Halves(at).v[i]);
        b[2 * i] = two & 255u;
        b[2 * i + 1] = two >> 8;
    }
}

// Reads 16 bytes at once. The address must be a multiple of 16, as in blocks of Q4_K and Q5_K.
void aligned_bytes_at(uint64_t at, out uint b[16]) {
    const uvec4 words = Quads(at).v[0];
    for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j)
            b[4 * i + j] = words[i] >> (8 * j) & 255u;
}

// Reads one nibble of each of 16 bytes. `shift` is 0 for low nibbles and 4 for high ones.
void nibbles_at(uint64_t at, uint shift, out uint q[16]) {
    bytes_at(at, q);
    for (uint i = 0; i < 16; ++i)
        q[i] = q[i] >> shift & 15u;
}

// Returns the step and the base of one of the eight sub-blocks of 32 elements of Q4_K and Q5_K, from
// the first 16 bytes of the block: two halves, and a 6-bit factor of each half for each sub-block.
vec2 step_base(uint64_t block, uint group) {
    const uvec4 head = Quads(block).v[0];
    const uint shift = 8 * (group % 4);
    const uint a = head.y >> shift & 255u, b = head.z >> shift & 255u, c = head.w >> shift & 255u;
    const uvec2 factors =
        group < 4 ? uvec2(a & 63u, b & 63u) : uvec2((c & 15u) | (a >> 6) << 4, (c >> 4) | (b >> 6) << 4);
    return unpackHalf2x16(head.x) * vec2(factors);
}

void unpack_q2_k(uint64_t block, uint g, out float v[16]) {
    const uint packed = byte_at(block + g);
    const float step = half_at(block + 80) * float(packed & 15u);
    const float base = half_at(block + 82) * float(packed >> 4);
    const uint64_t quants = block + 16 + 32 * (g / 8) + 16 * (g % 2);
    const uint shift = 2 * (g / 2 % 4);
    uint q[16];
    bytes_at(quants, q);
    for (uint i = 0; i < 16; ++i)
        v[i] = step * float(q[i] >> shift & 3u) - base;
}

void unpack_q3_k(uint64_t block, uint g, out float v[16]) {
    const uint64_t scales = block + 96;
    const uint low = g < 8 ? byte_at(scales + g) & 15u : byte_at(scales + g - 8) >> 4;
    const uint high = byte_at(scales + 8 + g % 4) >> (2 * (g / 4)) & 3u;
    const float step = half_at(block + 108) * (float(low | high << 4) - 32.0);
    const uint64_t top = block + 16 * (g % 2);
    const uint64_t quants = block + 32 + 32 * (g / 8) + 16 * (g % 2);
    const uint shift = 2 * (g / 2 % 4);
    uint low_bits[16], top_bits[16];
    bytes_at(quants, low_bits);
    bytes_at(top, top_bits);
    for (uint i = 0; i < 16; ++i) {
        const uint q = (low_bits[i] >> shift & 3u) | (top_bits[i] >> (g / 2) & 1u) << 2;
        v[i] = step * (float(q) - 4.0);
    }
}

void unpack_q4_k(uint64_t block, uint g, out float v[16]) {
    const vec2 scales = step_base(block, g / 2);
    const uint shift = 4 * (g / 2 % 2);
    uint q[16];
    aligned_bytes_at(block + 16 + 32 * (g / 4) + 16 * (g % 2), q);
    for (uint i = 0; i < 16; ++i)
        v[i] = scales.x * float(q[i] >> shift & 15u) - scales.y;
}

void unpack_q5_k(uint64_t block, uint g, out float v[16]) {
    const vec2 scales = step_base(block, g / 2);
    const uint shift = 4 * (g / 2 % 2);
    uint q[16], top[16];
    aligned_bytes_at(block + 48 + 32 * (g / 4) + 16 * (g % 2), q);
    aligned_bytes_at(block + 16 + 16 * (g % 2), top);
    for (uint i = 0; i < 16; ++i)
        v[i] = scales.x * float((q[i] >> shift & 15u) | (top[i] >> (g / 2) & 1u) << 4) - scales.y;
}

void unpack_q6_k(uint64_t block, uint g, out float v[16]) {
    const float step = half_at(block + 208) * float(signed_byte_at(block + 192 + g));
    const uint quarter = g / 2 % 4;
    const uint64_t low = block + 64 * (g / 8) + 32 * (quarter % 2) + 16 * (g % 2);
    const uint64_t high = block + 128 + 32 * (g / 8) + 16 * (g % 2);
    uint q[16], top[16];
    nibbles_at(low, 4 * (quarter / 2), q);
    bytes_at(high, top);
    for (uint i = 0; i < 16; ++i)
        v[i] = step * (float(q[i] | (top[i] >> (2 * quarter) & 3u) << 4) - 32.0);
}

void unpack_iq4_xs(uint64_t block, uint g, out float v[16]) {
    const uint of_32 = g / 2;
    const uint low = byte_at(block + 4 + of_32 / 2) >> (4 * (of_32 % 2)) & 15u;
    const uint high = half_bits_at(block + 2) >> (2 * of_32) & 3u;
    const float step = half_at(block) * (float(low | high << 4) - 32.0);
    uint q[16];
    nibbles_at(block + 8 + 16 * of_32, 4 * (g % 2), q);
    for (uint i = 0; i < 16; ++i)
        v[i] = step * IQ4_LEVELS[q[i]];
}

void unpack_mxfp4(uint64_t block, uint shift, out float v[16]) {
    const uint exponent = byte_at(block);  // the levels are doubled, so the scale is halved: 2^(exponent - 128)
    const float scale = uintBitsToFloat(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    for (uint i = 0; i < 16; ++i)
        v[i] = scale * E2M1_DOUBLED[byte_at(block + 1 + i) >> shift & 15u];
}

// Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: 4 or 5 bits, with a scale and possibly a minimum per 32
// elements.
void unpack_nibbles(uint type, uint64_t block, uint shift, out float v[16]) {
    const bool has_minimum = type == Q4_1 || type == Q5_1;
    const bool has_fifth = type == Q5_0 || type == Q5_1;
    const float scale = half_at(block);
    const float base = has_minimum ? half_at(block + 2) : 0.0;
    const uint64_t fifth_at = block + (has_minimum ? 4 : 2);
    const uint fifth = has_fifth ? word_at(fifth_at) >> (4 * shift) : 0u;
    const float middle = type == Q4_0 ? 8.0 : type == Q5_0 ? 16.0 : 0.0;
    uint q[16];
    nibbles_at(fifth_at + (has_fifth ? 4 : 0), shift, q);
    for (uint i = 0; i < 16; ++i) {
        if (type == IQ4_NL)
            v[i] = scale * IQ4_LEVELS[q[i]];
        else
            v[i] = (float(q[i] | (fifth >> i & 1u) << 4) - middle) * scale + base;
    }
}

uint bytes_of_32(uint type) {
    switch (type) {
    case Q8_0: return 34;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case MXFP4: return 17;
    default: return 18;
    }
}

// Types expanded by the host: an f32 scale and 16 codes, each stored as a byte with an offset of
// 64.
void unpack_expanded(uint64_t at, out float v[16]) {
    const float scale = Floats(at).v[0];
    for (uint i = 0; i < 4; ++i) {
        const uint four = Words(at + 4).v[i];
        for (uint j = 0; j < 4; ++j)
            v[4 * i + j] = scale * (float(four >> (8 * j) & 255u) - 64.0);
    }
}

// F16 and BF16, 16 bytes at once if the columns of the matrix allow it.
void unpack_halves(uint type, uint64_t at, out float v[16]) {
    uint halves[16];
    if ((uint(at) & 15u) == 0) {
        for (uint i = 0; i < 2; ++i) {
            const uvec4 words = Quads(at).v[i];
            for (uint j = 0; j < 4; ++j) {
                halves[8 * i + 2 * j] = words[j] & 65535u;
                halves[8 * i + 2 * j + 1] = words[j] >> 16;
            }
        }
    } else {
        for (uint i = 0; i < 16; ++i)
            halves[i] = uint(Halves(at).v[i]);
    }
    for (uint i = 0; i < 16; ++i)
        v[i] = type == F16 ? unpackHalf2x16(halves[i]).x : uintBitsToFloat(halves[i] << 16);
}

// Decodes elements [16 * group, 16 * group + 16) of the row at address `row`.
void unpack(uint type, uint64_t row, uint group, out float v[16]) {
    const uint64_t block = row + uint64_t(group / 2) * bytes_of_32(type);
    const uint shift = 4 * (group % 2);
    if (type >= EXPANDED) {
        unpack_expanded(row + uint64_t(group) * 20, v);
        return;
    }
    switch (type) {
    case F32:
        for (uint i = 0; i < 16; ++i) v[i] = Floats(row + uint64_t(group) * 64).v[i];
        break;
    case F16:
    case BF16: unpack_halves(type, row + uint64_t(group) * 32, v); break;
    case Q8_0: {
        const float scale = half_at(block);
        uint q[16];
        bytes_at(block + 2 + 16 * (group % 2), q);
        for (uint i = 0; i < 16; ++i)
            v[i] = float(bitfieldExtract(int(q[i]), 0, 8)) * scale;
        break;
    }
    case Q2_K: unpack_q2_k(row + uint64_t(group / 16) * 84, group % 16, v); break;
    case Q3_K: unpack_q3_k(row + uint64_t(group / 16) * 110, group % 16, v); break;
    case Q4_K: unpack_q4_k(row + uint64_t(group / 16) * 144, group % 16, v); break;
    case Q5_K: unpack_q5_k(row + uint64_t(group / 16) * 176, group % 16, v); break;
    case Q6_K: unpack_q6_k(row + uint64_t(group / 16) * 210, group % 16, v); break;
    case IQ4_XS: unpack_iq4_xs(row + uint64_t(group / 16) * 136, group % 16, v); break;
    case MXFP4: unpack_mxfp4(block, shift, v); break;
    default: unpack_nibbles(type, block, shift, v); break;
    }
}
