// Blocks of 32 values with one scale, and a minimum in the _1 types: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
// Layouts: block_q4_0 etc. in ggml-common.h; encoders: quantize_row_q4_0_ref etc. in ggml-quants.c
// (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"
#include "tensor/half.h"

namespace plait {

// Q4_0: 32 values as 4-bit integers with one scale. 4.5 bits per value.
//   value[i] = scale * (nibble[i] - 8)      byte j holds values j (low) and j + 16 (high)
struct [[gnu::packed]] BlockQ4_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

PLAIT_INLINE void decode(const BlockQ4_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>((block.nibbles[j] & 15) - 8) * scale;
        out[j + 16] = static_cast<float>((block.nibbles[j] >> 4) - 8) * scale;
    }
}

// The value with the largest magnitude becomes exactly -8 steps.
PLAIT_INLINE void encode(const float* values, BlockQ4_0& block) {
    const float scale = extreme(values, 32) / -8;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    for (int j = 0; j < 16; ++j) {
        const int low = truncate_to(values[j] * inverse + 8.5f, 15);
        const int high = truncate_to(values[j + 16] * inverse + 8.5f, 15);
        block.nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
}

// Q4_1: 32 values as 4-bit integers with a scale and a minimum. 5 bits per value.
//   value[i] = scale * nibble[i] + minimum      byte j holds values j (low) and j + 16 (high)
struct [[gnu::packed]] BlockQ4_1 {
    static constexpr int kElements = 32;
    uint16_t scale;    // f16
    uint16_t minimum;  // f16
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

PLAIT_INLINE void decode(const BlockQ4_1& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    for (int j = 0; j < 16; ++j) {
        out[j] = static_cast<float>(block.nibbles[j] & 15) * scale + minimum;
        out[j + 16] = static_cast<float>(block.nibbles[j] >> 4) * scale + minimum;
    }
}

PLAIT_INLINE void encode(const float* values, BlockQ4_1& block) {
    const Range range = range_of(values, 32);
    const float scale = (range.max - range.min) / 15;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    block.minimum = f32_to_f16(range.min);
    for (int j = 0; j < 16; ++j) {
        const int low = truncate_to((values[j] - range.min) * inverse + 0.5f, 15);
        const int high = truncate_to((values[j + 16] - range.min) * inverse + 0.5f, 15);
        block.nibbles[j] = static_cast<uint8_t>(low | high << 4);
    }
}

// Q5_0: 32 values as 5-bit integers with one scale. 5.5 bits per value.
//   value[i] = scale * ((nibble[i] | fifth[i] << 4) - 16)
// Byte j of nibbles holds values j (low) and j + 16 (high). Bit i of fifth is the fifth bit of
// value i.
struct [[gnu::packed]] BlockQ5_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    uint32_t fifth;
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

PLAIT_INLINE void decode(const BlockQ5_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const uint32_t fifth = block.fifth;
    for (int j = 0; j < 16; ++j) {
        const int low = (block.nibbles[j] & 15) | static_cast<int>(fifth >> j & 1) << 4;
        const int high = (block.nibbles[j] >> 4) | static_cast<int>(fifth >> (j + 16) & 1) << 4;
        out[j] = static_cast<float>(low - 16) * scale;
        out[j + 16] = static_cast<float>(high - 16) * scale;
    }
}

// The value with the largest magnitude becomes exactly -16 steps.
PLAIT_INLINE void encode(const float* values, BlockQ5_0& block) {
    const float scale = extreme(values, 32) / -16;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    uint32_t fifth = 0;
    for (int j = 0; j < 16; ++j) {
        const uint32_t low = truncate_to(values[j] * inverse + 16.5f, 31);
        const uint32_t high = truncate_to(values[j + 16] * inverse + 16.5f, 31);
        block.nibbles[j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    block.fifth = fifth;
}

// Q5_1: 32 values as 5-bit integers with a scale and a minimum. 6 bits per value.
//   value[i] = scale * (nibble[i] | fifth[i] << 4) + minimum
// Byte j of nibbles holds values j (low) and j + 16 (high). Bit i of fifth is the fifth bit of
// value i.
struct [[gnu::packed]] BlockQ5_1 {
    static constexpr int kElements = 32;
    uint16_t scale;    // f16
    uint16_t minimum;  // f16
    uint32_t fifth;
    uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

PLAIT_INLINE void decode(const BlockQ5_1& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    const float minimum = f16_to_f32(block.minimum);
    const uint32_t fifth = block.fifth;
    for (int j = 0; j < 16; ++j) {
        const int low = (block.nibbles[j] & 15) | static_cast<int>(fifth >> j & 1) << 4;
        const int high = (block.nibbles[j] >> 4) | static_cast<int>(fifth >> (j + 16) & 1) << 4;
        out[j] = static_cast<float>(low) * scale + minimum;
        out[j + 16] = static_cast<float>(high) * scale + minimum;
    }
}

PLAIT_INLINE void encode(const float* values, BlockQ5_1& block) {
    const Range range = range_of(values, 32);
    const float scale = (range.max - range.min) / 31;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    block.minimum = f32_to_f16(range.min);
    uint32_t fifth = 0;
    for (int j = 0; j < 16; ++j) {
        const uint32_t low = truncate_to((values[j] - range.min) * inverse + 0.5f, 31);
        const uint32_t high = truncate_to((values[j + 16] - range.min) * inverse + 0.5f, 31);
        block.nibbles[j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
        fifth |= (low >> 4) << j | (high >> 4) << (j + 16);
    }
    block.fifth = fifth;
}

// Q8_0: 32 values as 8-bit integers with one scale. 8.5 bits per value.
//   value[i] = scale * quants[i]
struct [[gnu::packed]] BlockQ8_0 {
    static constexpr int kElements = 32;
    uint16_t scale;  // f16
    int8_t quants[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

PLAIT_INLINE void decode(const BlockQ8_0& block, float* out) {
    const float scale = f16_to_f32(block.scale);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.quants[i]) * scale;
}

PLAIT_INLINE void encode(const float* values, BlockQ8_0& block) {
    const float scale = magnitude(extreme(values, 32)) / 127;
    const float inverse = reciprocal(scale);
    block.scale = f32_to_f16(scale);
    for (int i = 0; i < 32; ++i) block.quants[i] = round_to_i8(values[i] * inverse);
}

}  // namespace plait
