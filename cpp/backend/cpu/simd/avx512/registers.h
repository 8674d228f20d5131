// Sixteen lanes: AVX-512 F, BW, VL, DQ. See simd/simd.h.
#pragma once

#include "base/x86_intrinsics.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kRegisters = 32;

struct F32 {
    static constexpr int kLanes = 16;
    __m512 v;

    PLAIT_INLINE_MEMBER static __mmask16 first(int64_t n) {
        return static_cast<__mmask16>(_bzhi_u32(0xffff, static_cast<unsigned>(n)));
    }
    PLAIT_INLINE_MEMBER static F32 widen_bf16(__m256i h) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
    }

    PLAIT_INLINE_MEMBER static F32 zero() { return {_mm512_setzero_ps()}; }
    PLAIT_INLINE_MEMBER static F32 set(float x) { return {_mm512_set1_ps(x)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p, int64_t n) {
        return {_mm512_maskz_loadu_ps(first(n), p)};
    }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p, int64_t n) {
        return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))};
    }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p) {
        return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p, int64_t n) {
        return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
    }
    PLAIT_INLINE_MEMBER static F32 set_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(*p)))};
    }
    PLAIT_INLINE_MEMBER static F32 load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    }
    PLAIT_INLINE_MEMBER static __m128i nibbles(const uint8_t* p, int64_t i) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm_and_si128(i < 16 ? bytes : _mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    }
    PLAIT_INLINE_MEMBER static F32 load_nibbles(const uint8_t* p, int64_t i) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(nibbles(p, i)))};
    }
    PLAIT_INLINE_MEMBER static F32 load_levels(const uint8_t* p, int64_t i, const int8_t* levels) {
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
        const __m128i level = _mm_shuffle_epi8(table, nibbles(p, i));
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(level))};
    }

    // Rounds to nearest even, including subnormals (vcvtneps2bf16 would flush them). The quiet bit
    // keeps a NaN from becoming an infinity.
    PLAIT_INLINE_MEMBER __m256i to_bf16() const {
        const __m512i u = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        const __m512i rounded =
            _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
        const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i bits = _mm512_mask_mov_epi32(rounded, nan, quiet);
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
    }
    PLAIT_INLINE_MEMBER __m256i to_f16() const {
        return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }

    PLAIT_INLINE_MEMBER void store(float* p) const { _mm512_storeu_ps(p, v); }
    PLAIT_INLINE_MEMBER void store(float* p, int64_t n) const {
        _mm512_mask_storeu_ps(p, first(n), v);
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16());
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p, int64_t n) const {
        _mm256_mask_storeu_epi16(p, first(n), to_f16());
    }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16());
    }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p, int64_t n) const {
        _mm256_mask_storeu_epi16(p, first(n), to_bf16());
    }
};

PLAIT_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator&(F32 a, F32 b) { return {_mm512_and_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator|(F32 a, F32 b) { return {_mm512_or_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator^(F32 a, F32 b) { return {_mm512_xor_ps(a.v, b.v)}; }
PLAIT_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
template <int>
PLAIT_INLINE F32 set_of(const float* x, int i) {
    return F32::set(x[i]);
}
PLAIT_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
PLAIT_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
PLAIT_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
PLAIT_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
PLAIT_INLINE F32 round(F32 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PLAIT_INLINE F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
PLAIT_INLINE F32 select_bits(uint32_t bits, F32 yes, F32 no) {
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), no.v, yes.v)};
}
PLAIT_INLINE F32 times_power_of_two(F32 p, F32 n) { return {_mm512_scalef_ps(p.v, n.v)}; }
PLAIT_INLINE F32 exponent_of_low_bits(F32 a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
}

PLAIT_INLINE float sum(F32 a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}
PLAIT_INLINE F32 larger_bits(F32 a, F32 b) {
    return {
        _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
PLAIT_INLINE uint32_t reduce_larger_bits(F32 a) {
    return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_castps_si512(a.v)));
}

PLAIT_INLINE float reduce_max(F32 a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

PLAIT_INLINE bool any_less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ) != 0; }

PLAIT_INLINE F32 sums_of_four(const F32 (&r)[4]) {
    const auto fold = [](F32 a,
                         F32 b) {  // the sum of a's halves in the lower half, of b's in the upper
        return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a.v, b.v),
                             _mm512_shuffle_f32x4(a.v, b.v, 0x4e));
    };
    const __m512 a = fold(r[0], r[1]);
    const __m512 b = fold(r[2], r[3]);
    return {_mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))};
}
PLAIT_INLINE F32 join(const F32 (&r)[4]) {
    const auto fold = [](F32 a, F32 b) {  // in each four lanes: two sums of a, two of b
        return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a.v, b.v),
                             _mm512_shuffle_ps(a.v, b.v, 0x4e));
    };
    const __m512 a = fold(r[0], r[1]);
    const __m512 b = fold(r[2], r[3]);
    return {_mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd))};
}

PLAIT_INLINE void transpose(F32* r) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    __m512 u[16];  // the 128-bit part a of u[4 b + j] is column 4 a + j of rows 4 b to 4 b + 3
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512 a = _mm512_shuffle_f32x4(u[j], u[j + 4], 0x44);
        const __m512 b = _mm512_shuffle_f32x4(u[j], u[j + 4], 0xee);
        const __m512 c = _mm512_shuffle_f32x4(u[j + 8], u[j + 12], 0x44);
        const __m512 d = _mm512_shuffle_f32x4(u[j + 8], u[j + 12], 0xee);
        r[j].v = _mm512_shuffle_f32x4(a, c, 0x88);
        r[j + 4].v = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[j + 8].v = _mm512_shuffle_f32x4(b, d, 0x88);
        r[j + 12].v = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

}  // namespace plait::cpu::PLAIT_ISA

#include "backend/cpu/simd/vector_math.h"
