// FourBlocks of simd/dot.h for AVX2, eight lanes at a time. AVX-512 has it too.
#pragma once

namespace plait::cpu::PLAIT_ISA {

class EightLanes {
public:
    PLAIT_INLINE_MEMBER EightLanes(const int8_t* a, int64_t stride, const float* offsets)
        : _first(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(offsets))),
          _second(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(offsets + 4))) {
        for (int i = 0; i < 4; ++i)
            _a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + stride * i));
    }

    // The products of lanes `first` to first + 7, by block.
    PLAIT_INLINE_MEMBER void dot(const LaneCodes& lanes, int first, int64_t b,
                                 __m256 (&to)[4]) const {
        __m256 t[4];  // t[i]: of four blocks, for lane i and then for lane i + 4
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) t[i] = two(lanes, first + i, first + i + 4, b);
        const __m256 a = _mm256_unpacklo_ps(t[0], t[1]), c = _mm256_unpacklo_ps(t[2], t[3]);
        const __m256 d = _mm256_unpackhi_ps(t[0], t[1]), e = _mm256_unpackhi_ps(t[2], t[3]);
        to[0] = _mm256_shuffle_ps(a, c, 0x44);
        to[1] = _mm256_shuffle_ps(a, c, 0xee);
        to[2] = _mm256_shuffle_ps(d, e, 0x44);
        to[3] = _mm256_shuffle_ps(d, e, 0xee);
    }

private:
    PLAIT_INLINE_MEMBER __m256i fours(const uint8_t* codes, int i) const {
        const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 32 * i));
        return _mm256_madd_epi16(_mm256_maddubs_epi16(c, _a[i]), _mm256_set1_epi16(1));
    }
    // The sums of the first units of four blocks, then of the second units: additions work within
    // halves of a register.
    PLAIT_INLINE_MEMBER __m256i units(const uint8_t* codes) const {
        return _mm256_hadd_epi32(_mm256_hadd_epi32(fours(codes, 0), fours(codes, 1)),
                                 _mm256_hadd_epi32(fours(codes, 2), fours(codes, 3)));
    }
    PLAIT_INLINE_MEMBER __m256 two(const LaneCodes& lanes, int lane, int other, int64_t b) const {
        const __m256i x = units(lanes.codes[lane] + 32 * b);
        const __m256i y = units(lanes.codes[other] + 32 * b);
        const __m256 s = _mm256_loadu_ps(lanes.scales[lane] + 2 * b);
        const __m256 z = _mm256_loadu_ps(lanes.scales[other] + 2 * b);
        const __m256 low = _mm256_permute2f128_ps(s, z, 0x20);
        const __m256 high = _mm256_permute2f128_ps(s, z, 0x31);
        const __m256 first =
            _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_permute2x128_si256(x, y, 0x20)), _first);
        const __m256 second =
            _mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_permute2x128_si256(x, y, 0x31)), _second);
        return _mm256_fmadd_ps(_mm256_shuffle_ps(low, high, 0xdd), second,
                               _mm256_mul_ps(_mm256_shuffle_ps(low, high, 0x88), first));
    }

    __m256i _a[4];
    __m256 _first, _second;  // offsets, twice
};

}  // namespace plait::cpu::PLAIT_ISA
