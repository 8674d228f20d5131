// Four lanes: the 128-bit registers of ARMv8.2. See simd/simd.h.
#pragma once

#include <arm_neon.h>

namespace plait::cpu::PLAIT_ISA {

constexpr int kRegisters = 32;

struct F32 {
    static constexpr int kLanes = 4;
    float32x4_t v;

    PLAIT_INLINE_MEMBER static F32 widen_f16(uint16x4_t h) {
        return {vcvt_f32_f16(vreinterpret_f16_u16(h))};
    }
    PLAIT_INLINE_MEMBER static F32 widen_bf16(uint16x4_t h) {
        return {vreinterpretq_f32_u32(vshll_n_u16(h, 16))};
    }
    PLAIT_INLINE_MEMBER static uint16x4_t load_u16(const uint16_t* p, int64_t n) {
        uint16_t u[kLanes] = {};
        for (int64_t i = 0; i < n; ++i) u[i] = p[i];
        return vld1_u16(u);
    }
    PLAIT_INLINE_MEMBER static void store_u16(uint16x4_t h, uint16_t* p, int64_t n) {
        uint16_t u[kLanes];
        vst1_u16(u, h);
        for (int64_t i = 0; i < n; ++i) p[i] = u[i];
    }

    PLAIT_INLINE_MEMBER static F32 zero() { return {vdupq_n_f32(0.0f)}; }
    PLAIT_INLINE_MEMBER static F32 set(float x) { return {vdupq_n_f32(x)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return {vld1q_f32(p)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p, int64_t n) {
        float u[kLanes] = {};
        for (int64_t i = 0; i < n; ++i) u[i] = p[i];
        return load(u);
    }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p) { return widen_f16(vld1_u16(p)); }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p, int64_t n) {
        return widen_f16(load_u16(p, n));
    }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p) { return widen_bf16(vld1_u16(p)); }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p, int64_t n) {
        return widen_bf16(load_u16(p, n));
    }
    PLAIT_INLINE_MEMBER static F32 set_f16(const uint16_t* p) { return widen_f16(vdup_n_u16(*p)); }
    // The first four bytes as floats.
    PLAIT_INLINE_MEMBER static F32 widen_i8(int8x8_t bytes) {
        return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))};
    }
    PLAIT_INLINE_MEMBER static int8x8_t load_four(const void* p) {
        uint32_t word;
        memcpy(&word, p, sizeof word);
        return vreinterpret_s8_u32(vdup_n_u32(word));
    }
    PLAIT_INLINE_MEMBER static F32 load_i8(const int8_t* p) { return widen_i8(load_four(p)); }
    PLAIT_INLINE_MEMBER static int8x8_t nibbles(const uint8_t* p, int64_t i) {
        const uint8x8_t both = vreinterpret_u8_s8(load_four(p + i % 16));
        return vreinterpret_s8_u8(i < 16 ? vand_u8(both, vdup_n_u8(15)) : vshr_n_u8(both, 4));
    }
    PLAIT_INLINE_MEMBER static F32 load_nibbles(const uint8_t* p, int64_t i) {
        return widen_i8(nibbles(p, i));
    }
    PLAIT_INLINE_MEMBER static F32 load_levels(const uint8_t* p, int64_t i, const int8_t* levels) {
        return widen_i8(vqtbl1_s8(vld1q_s8(levels), vreinterpret_u8_s8(nibbles(p, i))));
    }

    // Rounds to nearest even. The quiet bit keeps a NaN from becoming an infinity.
    PLAIT_INLINE_MEMBER uint16x4_t to_bf16() const {
        const uint32x4_t u = vreinterpretq_u32_f32(v);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
        const uint32x4_t rounded = vaddq_u32(vaddq_u32(u, odd), vdupq_n_u32(0x7fff));
        const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
        return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
    }
    PLAIT_INLINE_MEMBER uint16x4_t to_f16() const { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }

    PLAIT_INLINE_MEMBER void store(float* p) const { vst1q_f32(p, v); }
    PLAIT_INLINE_MEMBER void store(float* p, int64_t n) const {
        float u[kLanes];
        store(u);
        for (int64_t i = 0; i < n; ++i) p[i] = u[i];
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p) const { vst1_u16(p, to_f16()); }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p, int64_t n) const { store_u16(to_f16(), p, n); }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p) const { vst1_u16(p, to_bf16()); }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p, int64_t n) const {
        store_u16(to_bf16(), p, n);
    }
};

PLAIT_INLINE uint32x4_t bits_of(F32 a) { return vreinterpretq_u32_f32(a.v); }
PLAIT_INLINE F32 from_bits(uint32x4_t bits) { return {vreinterpretq_f32_u32(bits)}; }

PLAIT_INLINE F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
PLAIT_INLINE F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
PLAIT_INLINE F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
PLAIT_INLINE F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
PLAIT_INLINE F32 operator&(F32 a, F32 b) { return from_bits(vandq_u32(bits_of(a), bits_of(b))); }
PLAIT_INLINE F32 operator|(F32 a, F32 b) { return from_bits(vorrq_u32(bits_of(a), bits_of(b))); }
PLAIT_INLINE F32 operator^(F32 a, F32 b) { return from_bits(veorq_u32(bits_of(a), bits_of(b))); }
PLAIT_INLINE F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// Four floats share a load. FMLA takes a lane as its second factor.
template <int kCount>
PLAIT_INLINE F32 set_of(const float* x, int i) {
    if (i / 4 * 4 + 4 > kCount) return F32::set(x[i]);
    const float32x4_t four = vld1q_f32(x + i / 4 * 4);
    switch (i % 4) {
    case 0: return {vdupq_laneq_f32(four, 0)};
    case 1: return {vdupq_laneq_f32(four, 1)};
    case 2: return {vdupq_laneq_f32(four, 2)};
    default: return {vdupq_laneq_f32(four, 3)};
    }
}
// Not vmaxq_f32 and vminq_f32, which return NaN if either operand is NaN.
PLAIT_INLINE F32 max(F32 a, F32 b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
PLAIT_INLINE F32 min(F32 a, F32 b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
PLAIT_INLINE F32 abs(F32 a) { return {vabsq_f32(a.v)}; }
PLAIT_INLINE F32 sqrt(F32 a) { return {vsqrtq_f32(a.v)}; }
PLAIT_INLINE F32 round(F32 a) { return {vrndnq_f32(a.v)}; }
PLAIT_INLINE F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {vbslq_f32(vcltq_f32(a.v, b.v), yes.v, no.v)};
}
PLAIT_INLINE F32 select_bits(uint32_t bits, F32 yes, F32 no) {
    static constexpr uint32_t kLaneBits[4] = {1, 2, 4, 8};
    return {vbslq_f32(vtstq_u32(vdupq_n_u32(bits), vld1q_u32(kLaneBits)), yes.v, no.v)};
}

// p * 2^n for integers n in [-151, 129], with two factors, each of which is a normal number.
PLAIT_INLINE F32 times_power_of_two(F32 p, F32 n) {
    const int32x4_t whole = vcvtnq_s32_f32(n.v);
    const int32x4_t half = vshrq_n_s32(whole, 1);
    const int32x4_t rest = vsubq_s32(whole, half);
    const int32x4_t bias = vdupq_n_s32(127);
    const float32x4_t a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    const float32x4_t b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return {vmulq_f32(vmulq_f32(p.v, a), b)};
}
PLAIT_INLINE F32 exponent_of_low_bits(F32 a) { return from_bits(vshlq_n_u32(bits_of(a), 23)); }

// The tree of vaddvq_f32 and of vpaddq_f32: (0 + 1) + (2 + 3).
PLAIT_INLINE float sum(F32 a) { return vaddvq_f32(a.v); }
PLAIT_INLINE F32 larger_bits(F32 a, F32 b) { return from_bits(vmaxq_u32(bits_of(a), bits_of(b))); }
PLAIT_INLINE uint32_t reduce_larger_bits(F32 a) { return vmaxvq_u32(bits_of(a)); }
PLAIT_INLINE float reduce_max(F32 a) {
    const F32 pairs = max(a, {vextq_f32(a.v, a.v, 2)});
    const F32 all = max(pairs, {vextq_f32(pairs.v, pairs.v, 1)});
    return vgetq_lane_f32(all.v, 0);
}
PLAIT_INLINE bool any_less(F32 a, F32 b) { return vmaxvq_u32(vcltq_f32(a.v, b.v)) != 0; }

PLAIT_INLINE F32 sums_of_four(const F32 (&r)[1]) { return r[0]; }
PLAIT_INLINE F32 join(const F32 (&r)[4]) {
    return {vpaddq_f32(vpaddq_f32(r[0].v, r[1].v), vpaddq_f32(r[2].v, r[3].v))};
}

PLAIT_INLINE void transpose(F32* r) {
    const auto first = [](float32x4_t a, float32x4_t b) {
        return vreinterpretq_f32_f64(
            vtrn1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
    };
    const auto second = [](float32x4_t a, float32x4_t b) {
        return vreinterpretq_f32_f64(
            vtrn2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
    };
    const float32x4_t a = vtrn1q_f32(r[0].v, r[1].v), b = vtrn2q_f32(r[0].v, r[1].v);
    const float32x4_t c = vtrn1q_f32(r[2].v, r[3].v), d = vtrn2q_f32(r[2].v, r[3].v);
    r[0].v = first(a, c);
    r[1].v = first(b, d);
    r[2].v = second(a, c);
    r[3].v = second(b, d);
}

}  // namespace plait::cpu::PLAIT_ISA

#include "backend/cpu/simd/vector_math.h"
