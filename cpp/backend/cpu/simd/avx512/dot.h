// AVX-512 BW, VNNI and BF16. See simd/dot.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

constexpr bool kUnsignedDot = true;
// 1.5 * 2^23. Adding an integer to the bits of this float adds the same integer to its value, so a
// sum that starts here needs no conversion to float.
constexpr float kSumsBase = 12582912.0f;
constexpr bool kShiftsBytes = false;
constexpr int kMinRowsForInverted = 64;

struct TileShape {
    static constexpr bool kSharesPrefetches = true;
    static constexpr bool kWideForSlowCodes = true;
    static constexpr int kWidePanels = 3;
    static constexpr int kHighPanels = 2;
    static constexpr int kBlockPanelsOfOneRow = 3;
    static constexpr bool kReadsPanelsInTurn = true;
    static constexpr bool kStartsAtOffset = false;
    static constexpr int kFloatRows = 8;
    static constexpr int kFloatPanels = 2;
    static constexpr int kPanelsOfOneRow = 4;
    static constexpr int kHalfPanelsOfOneRow = 4;
};

struct Bytes {
    typedef uint16_t Pairs __attribute__((vector_size(64)));
    __m512i v;

    PLAIT_INLINE_MEMBER static Bytes load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
    PLAIT_INLINE_MEMBER static Bytes set(uint8_t x) {
        return {_mm512_set1_epi8(static_cast<char>(x))};
    }
    PLAIT_INLINE_MEMBER static Bytes four(const int8_t* row, int group) {
        int word;
        memcpy(&word, row + 4 * group, 4);
        return {_mm512_set1_epi32(word)};
    }
    PLAIT_INLINE_MEMBER static Bytes table(const uint8_t* p) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    PLAIT_INLINE_MEMBER void store(int8_t* p) const { _mm512_storeu_si512(p, v); }
    PLAIT_INLINE_MEMBER Bytes left(int n) const { return {(__m512i)((Pairs)v << n)}; }
    PLAIT_INLINE_MEMBER Bytes right(int n) const { return {(__m512i)((Pairs)v >> n)}; }
};

PLAIT_INLINE Bytes operator&(Bytes a, Bytes b) { return {_mm512_and_si512(a.v, b.v)}; }
PLAIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
PLAIT_INLINE Bytes operator-(Bytes a, Bytes b) { return {_mm512_sub_epi8(a.v, b.v)}; }
PLAIT_INLINE Bytes lookup(Bytes table, Bytes index) {
    return {_mm512_shuffle_epi8(table.v, index.v)};
}

struct Sums {
    __m512i v = _mm512_castps_si512(_mm512_set1_ps(kSumsBase));

    template <Signs kSigns, int kGroups>
    PLAIT_INLINE_MEMBER void add(Bytes codes, Bytes a, int) {
        static_assert(kSigns == Signs::kUnsigned);
        v = _mm512_dpbusd_epi32(v, codes.v, a.v);
    }
    PLAIT_INLINE_MEMBER F32 value() const { return {_mm512_castsi512_ps(v)}; }
};

PLAIT_INLINE void store_codes(const F32 (&x)[2], int8_t* to, int16_t* sums) {
    const auto bytes = [&](int i) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x[i].v)); };
    const __m256i c = _mm256_set_m128i(bytes(1), bytes(0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), c);
    const __m256i s =
        _mm256_sad_epu8(_mm256_xor_si256(c, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i pair = _mm256_add_epi64(s, _mm256_unpackhi_epi64(s, s));
    sums[0] = static_cast<int16_t>(_mm256_extract_epi16(pair, 0) - 16 * 128);
    sums[1] = static_cast<int16_t>(_mm256_extract_epi16(pair, 8) - 16 * 128);
}

// Two columns at a time, with rows that are rounded to BF16: vdpbf16ps does twice the work of an
// fma.
struct DotBF16 {
    using Element = uint16_t;
    using Input = uint16_t;
    static constexpr int kColumns = 2;
    // Rounds a row to BF16 and appends a zero.
    PLAIT_INLINE_MEMBER static const uint16_t* row(const float* x, int64_t columns,
                                                   unsigned char* scratch) {
        auto* to = reinterpret_cast<uint16_t*>(scratch);
        int64_t k = 0;
        for (; k + 2 * F32::kLanes <= columns; k += 2 * F32::kLanes) {
            const F32 low = F32::load(x + k), high = F32::load(x + k + F32::kLanes);
            // Subnormal numbers become zeros, as which vdpbf16ps would read them.
            _mm512_storeu_si512(to + k, (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v));
        }
        for (; k + F32::kLanes <= columns; k += F32::kLanes) F32::load(x + k).store_bf16(to + k);
        if (k < columns) F32::load(x + k, columns - k).store_bf16(to + k, columns - k);
        to[columns] = 0;
        return to;
    }
    // Two columns of a panel, [2][lanes], as pairs by lane; load_one() pairs one column with zeros.
    PLAIT_INLINE_MEMBER static __m512i load(const uint16_t* p) {
        // Words 2 i and 2 i + 1 of the result are words i and 16 + i.
        const __m512i low = _mm512_cvtepu8_epi16(
            _mm256_setr_epi8(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,
                             10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
        return _mm512_permutexvar_epi16(low, _mm512_loadu_si512(p));
    }
    PLAIT_INLINE_MEMBER static __m512i load_one(const uint16_t* p) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    // Returns y + pair . (x[0], x[1]).
    PLAIT_INLINE_MEMBER static F32 add(F32 y, __m512i pair, const uint16_t* x) {
        int both;
        memcpy(&both, x, 4);
        return {_mm512_dpbf16_ps(y.v, (__m512bh)pair, (__m512bh)_mm512_set1_epi32(both))};
    }
};

}  // namespace plait::cpu::PLAIT_ISA
