// Software conversion of 16-bit floats: the reference that vector code must match. f16 is IEEE 754
// binary16; bf16 is the upper half of binary32. Both round to nearest, ties to even. A NaN becomes
// quiet and keeps the payload bits that fit, as with the x86 instructions.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

PLAIT_INLINE float f16_to_f32(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1Fu;
    const uint32_t fraction = half & 0x3FFu;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in binary32
        const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
        return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
    }
    if (exponent == 0x1F) {
        const uint32_t quiet = fraction == 0 ? 0 : 0x400000u;
        return __builtin_bit_cast(float, sign | 0x7F800000u | quiet | fraction << 13);
    }
    return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | fraction << 13);
}

PLAIT_INLINE uint16_t f32_to_f16(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t half = 0;
    if (magnitude > 0x7F800000u) {
        half = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    } else if (magnitude >= 0x477FF000u) {  // 65520, halfway to 2^16: rounds to infinity
        half = 0x7C00u;
    } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal
        half = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    } else if (magnitude > 0x33000000u) {  // above 2^-25, half of the smallest subnormal
        const uint32_t shift = 126u - (magnitude >> 23);  // 14 to 24
        const uint32_t fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
        const uint32_t odd = (fraction >> shift) & 1u;
        half = (fraction + (1u << (shift - 1)) - 1u + odd) >> shift;
    }
    return static_cast<uint16_t>(sign | half);
}

PLAIT_INLINE float bf16_to_f32(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return __builtin_bit_cast(float, nan ? bits | 0x400000u : bits);
}

PLAIT_INLINE uint16_t f32_to_bf16(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    if (nan) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace plait
