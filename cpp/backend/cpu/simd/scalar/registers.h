// One lane, in plain C++: the reference, and the fallback for other processors. See simd/simd.h.
#pragma once

#include "tensor/half.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kRegisters = 16;

struct F32 {
    static constexpr int kLanes = 1;
    float v;

    PLAIT_INLINE_MEMBER static F32 zero() { return {0.0f}; }
    PLAIT_INLINE_MEMBER static F32 set(float x) { return {x}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return {*p}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p, int64_t n) { return {n > 0 ? *p : 0.0f}; }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p) { return {f16_to_f32(*p)}; }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p, int64_t n) {
        return {n > 0 ? f16_to_f32(*p) : 0.0f};
    }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p) { return {bf16_to_f32(*p)}; }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p, int64_t n) {
        return {n > 0 ? bf16_to_f32(*p) : 0.0f};
    }
    PLAIT_INLINE_MEMBER static F32 set_f16(const uint16_t* p) { return load_f16(p); }
    PLAIT_INLINE_MEMBER static F32 load_i8(const int8_t* p) { return {static_cast<float>(*p)}; }
    PLAIT_INLINE_MEMBER static int nibble(const uint8_t* p, int64_t i) {
        return i < 16 ? p[i] & 15 : p[i - 16] >> 4;
    }
    PLAIT_INLINE_MEMBER static F32 load_nibbles(const uint8_t* p, int64_t i) {
        return {static_cast<float>(nibble(p, i))};
    }
    PLAIT_INLINE_MEMBER static F32 load_levels(const uint8_t* p, int64_t i, const int8_t* levels) {
        return {static_cast<float>(levels[nibble(p, i)])};
    }

    PLAIT_INLINE_MEMBER void store(float* p) const { *p = v; }
    PLAIT_INLINE_MEMBER void store(float* p, int64_t n) const {
        if (n > 0) *p = v;
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p) const { *p = f32_to_f16(v); }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p, int64_t n) const {
        if (n > 0) *p = f32_to_f16(v);
    }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p) const { *p = f32_to_bf16(v); }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p, int64_t n) const {
        if (n > 0) *p = f32_to_bf16(v);
    }
};

PLAIT_INLINE uint32_t bits_of(F32 a) {
    uint32_t bits;
    memcpy(&bits, &a.v, sizeof bits);
    return bits;
}
PLAIT_INLINE F32 from_bits(uint32_t bits) {
    F32 a;
    memcpy(&a.v, &bits, sizeof bits);
    return a;
}

PLAIT_INLINE F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
PLAIT_INLINE F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
PLAIT_INLINE F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
PLAIT_INLINE F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
PLAIT_INLINE F32 operator&(F32 a, F32 b) { return from_bits(bits_of(a) & bits_of(b)); }
PLAIT_INLINE F32 operator|(F32 a, F32 b) { return from_bits(bits_of(a) | bits_of(b)); }
PLAIT_INLINE F32 operator^(F32 a, F32 b) { return from_bits(bits_of(a) ^ bits_of(b)); }
// Rounded twice: without the instruction, a fused multiply-add is a slow library call.
PLAIT_INLINE F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
template <int>
PLAIT_INLINE F32 set_of(const float* x, int i) {
    return F32::set(x[i]);
}
PLAIT_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
PLAIT_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
PLAIT_INLINE F32 abs(F32 a) { return {__builtin_fabsf(a.v)}; }
PLAIT_INLINE F32 sqrt(F32 a) { return {__builtin_sqrtf(a.v)}; }
PLAIT_INLINE F32 round(F32 a) { return {__builtin_nearbyintf(a.v)}; }
PLAIT_INLINE F32 select_less(F32 a, F32 b, F32 yes, F32 no) { return a.v < b.v ? yes : no; }
PLAIT_INLINE F32 select_bits(uint32_t bits, F32 yes, F32 no) { return (bits & 1) != 0 ? yes : no; }
PLAIT_INLINE float sum(F32 a) { return a.v; }
PLAIT_INLINE uint32_t reduce_larger_bits(F32 a) {
    uint32_t bits;
    memcpy(&bits, &a.v, sizeof bits);
    return bits;
}
PLAIT_INLINE F32 larger_bits(F32 a, F32 b) {
    return reduce_larger_bits(a) < reduce_larger_bits(b) ? b : a;
}
PLAIT_INLINE float reduce_max(F32 a) { return a.v; }
PLAIT_INLINE bool any_less(F32 a, F32 b) { return a.v < b.v; }
PLAIT_INLINE F32 sums_of_four(const F32 (&r)[1]) { return r[0]; }
PLAIT_INLINE F32 join(const F32 (&r)[1]) { return r[0]; }
PLAIT_INLINE void transpose(F32*) {}
PLAIT_INLINE F32 negate(F32 a) { return F32::set(-0.0f) ^ a; }

PLAIT_INLINE F32 exp(F32 x) { return {__builtin_expf(x.v)}; }
PLAIT_INLINE F32 exp_nonpositive(F32 x) { return exp(x); }
PLAIT_INLINE F32 exp2(F32 x) { return {__builtin_exp2f(x.v)}; }
PLAIT_INLINE F32 power_of_two(F32 n) { return exp2(n); }
PLAIT_INLINE F32 tanh(F32 x) { return {__builtin_tanhf(x.v)}; }
PLAIT_INLINE F32 erfc_positive(F32 x) { return {__builtin_erfcf(x.v)}; }
PLAIT_INLINE F32 log1p_unit(F32 x) { return {__builtin_log1pf(x.v)}; }

}  // namespace plait::cpu::PLAIT_ISA
