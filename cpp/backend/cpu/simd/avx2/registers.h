// Eight lanes: AVX2, FMA, F16C. See simd/simd.h.
#pragma once

#include "base/x86_intrinsics.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kRegisters = 16;

struct F32 {
    static constexpr int kLanes = 8;
    __m256 v;

    // All ones in the first n lanes.
    PLAIT_INLINE_MEMBER static __m256i first(int64_t n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    PLAIT_INLINE_MEMBER static F32 widen_f16(__m128i h) { return {_mm256_cvtph_ps(h)}; }
    PLAIT_INLINE_MEMBER static F32 widen_bf16(__m128i h) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
    }
    PLAIT_INLINE_MEMBER static __m128i load_u16(const uint16_t* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    PLAIT_INLINE_MEMBER static __m128i load_u16(const uint16_t* p, int64_t n) {
        uint16_t u[kLanes] = {};
        for (int64_t i = 0; i < n; ++i) u[i] = p[i];
        return load_u16(u);
    }
    PLAIT_INLINE_MEMBER static void store_u16(__m128i h, uint16_t* p, int64_t n) {
        uint16_t u[kLanes];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(u), h);
        for (int64_t i = 0; i < n; ++i) p[i] = u[i];
    }

    PLAIT_INLINE_MEMBER static F32 zero() { return {_mm256_setzero_ps()}; }
    PLAIT_INLINE_MEMBER static F32 set(float x) { return {_mm256_set1_ps(x)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    PLAIT_INLINE_MEMBER static F32 load(const float* p, int64_t n) {
        return {_mm256_maskload_ps(p, first(n))};
    }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p) { return widen_f16(load_u16(p)); }
    PLAIT_INLINE_MEMBER static F32 load_f16(const uint16_t* p, int64_t n) {
        return widen_f16(load_u16(p, n));
    }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p) { return widen_bf16(load_u16(p)); }
    PLAIT_INLINE_MEMBER static F32 load_bf16(const uint16_t* p, int64_t n) {
        return widen_bf16(load_u16(p, n));
    }
    PLAIT_INLINE_MEMBER static F32 set_f16(const uint16_t* p) {
        return widen_f16(_mm_set1_epi16(static_cast<short>(*p)));
    }
    PLAIT_INLINE_MEMBER static F32 load_i8(const int8_t* p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
    }
    PLAIT_INLINE_MEMBER static __m128i nibbles(const uint8_t* p, int64_t i) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i % 16));
        return _mm_and_si128(i < 16 ? bytes : _mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    }
    PLAIT_INLINE_MEMBER static F32 load_nibbles(const uint8_t* p, int64_t i) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(nibbles(p, i)))};
    }
    PLAIT_INLINE_MEMBER static F32 load_levels(const uint8_t* p, int64_t i, const int8_t* levels) {
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
        const __m128i level = _mm_shuffle_epi8(table, nibbles(p, i));
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(level))};
    }

    // Rounds to nearest even. The quiet bit keeps a NaN from becoming an infinity.
    PLAIT_INLINE_MEMBER __m128i to_bf16() const {
        const __m256i u = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
        const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
        return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    }
    PLAIT_INLINE_MEMBER __m128i to_f16() const {
        return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }

    PLAIT_INLINE_MEMBER void store(float* p) const { _mm256_storeu_ps(p, v); }
    PLAIT_INLINE_MEMBER void store(float* p, int64_t n) const {
        _mm256_maskstore_ps(p, first(n), v);
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_f16());
    }
    PLAIT_INLINE_MEMBER void store_f16(uint16_t* p, int64_t n) const { store_u16(to_f16(), p, n); }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16());
    }
    PLAIT_INLINE_MEMBER void store_bf16(uint16_t* p, int64_t n) const {
        store_u16(to_bf16(), p, n);
    }
};

PLAIT_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator&(F32 a, F32 b) { return {_mm256_and_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator|(F32 a, F32 b) { return {_mm256_or_ps(a.v, b.v)}; }
PLAIT_INLINE F32 operator^(F32 a, F32 b) { return {_mm256_xor_ps(a.v, b.v)}; }
PLAIT_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
template <int>
PLAIT_INLINE F32 set_of(const float* x, int i) {
    return F32::set(x[i]);
}
PLAIT_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
PLAIT_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
PLAIT_INLINE F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
PLAIT_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
PLAIT_INLINE F32 round(F32 a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PLAIT_INLINE F32 select_less(F32 a, F32 b, F32 yes, F32 no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
PLAIT_INLINE F32 select_bits(uint32_t bits, F32 yes, F32 no) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane)))};
}

// p * 2^n for integers n in [-151, 129], with two factors, each of which is a normal number.
PLAIT_INLINE F32 times_power_of_two(F32 p, F32 n) {
    const __m256i whole = _mm256_cvtps_epi32(n.v);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return {_mm256_mul_ps(_mm256_mul_ps(p.v, a), b)};
}
PLAIT_INLINE F32 exponent_of_low_bits(F32 a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 23))};
}

PLAIT_INLINE float sum(F32 a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}
PLAIT_INLINE F32 larger_bits(F32 a, F32 b) {
    return {
        _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v)))};
}
PLAIT_INLINE uint32_t reduce_larger_bits(F32 a) {
    const __m256i v = _mm256_castps_si256(a.v);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

PLAIT_INLINE float reduce_max(F32 a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

PLAIT_INLINE bool any_less(F32 a, F32 b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)) != 0;
}

PLAIT_INLINE F32 sums_of_four(const F32 (&r)[2]) {
    return {_mm256_add_ps(_mm256_blend_ps(r[0].v, r[1].v, 0xf0),
                          _mm256_permute2f128_ps(r[0].v, r[1].v, 0x21))};
}
PLAIT_INLINE F32 join(const F32 (&r)[4]) {
    const auto fold = [](F32 a, F32 b) {  // in each four lanes: two sums of a, two of b
        return _mm256_add_ps(_mm256_blend_ps(a.v, b.v, 0xcc), _mm256_shuffle_ps(a.v, b.v, 0x4e));
    };
    const __m256 a = fold(r[0], r[1]);
    const __m256 b = fold(r[2], r[3]);
    return {_mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd))};
}

PLAIT_INLINE void transpose(F32* r) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
        t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    __m256 u[8];
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

}  // namespace plait::cpu::PLAIT_ISA

#include "backend/cpu/simd/vector_math.h"
