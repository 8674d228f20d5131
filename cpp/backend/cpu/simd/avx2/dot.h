// AVX2. See simd/dot.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

constexpr bool kUnsignedDot = false;
constexpr float kSumsBase = 0.0f;
constexpr bool kShiftsBytes = false;
constexpr int kMinRowsForInverted = 4;

struct TileShape {
    static constexpr bool kSharesPrefetches = true;
    static constexpr bool kWideForSlowCodes = false;
    static constexpr int kWidePanels = 2;
    static constexpr int kHighPanels = 2;
    static constexpr int kBlockPanelsOfOneRow = 3;
    static constexpr bool kReadsPanelsInTurn = false;
    static constexpr bool kStartsAtOffset = false;
    static constexpr int kFloatRows = 4;
    static constexpr int kFloatPanels = 3;
    static constexpr int kPanelsOfOneRow = 8;
    static constexpr int kHalfPanelsOfOneRow = 4;
};

struct Bytes {
    typedef uint16_t Pairs __attribute__((vector_size(32)));
    __m256i v;

    PLAIT_INLINE_MEMBER static Bytes load(const uint8_t* p) {
        return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
    }
    PLAIT_INLINE_MEMBER static Bytes set(uint8_t x) {
        return {_mm256_set1_epi8(static_cast<char>(x))};
    }
    PLAIT_INLINE_MEMBER static Bytes four(const int8_t* row, int group) {
        int word;
        memcpy(&word, row + 4 * group, 4);
        return {_mm256_set1_epi32(word)};
    }
    PLAIT_INLINE_MEMBER static Bytes table(const uint8_t* p) {
        return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    PLAIT_INLINE_MEMBER static Bytes of(Bytes c) { return c; }
    PLAIT_INLINE_MEMBER void store(uint8_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
    }
    PLAIT_INLINE_MEMBER Bytes left(int n) const { return {(__m256i)((Pairs)v << n)}; }
    PLAIT_INLINE_MEMBER Bytes right(int n) const { return {(__m256i)((Pairs)v >> n)}; }
};

PLAIT_INLINE Bytes operator&(Bytes a, Bytes b) { return {_mm256_and_si256(a.v, b.v)}; }
PLAIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {_mm256_or_si256(a.v, b.v)}; }
PLAIT_INLINE Bytes lookup(Bytes table, Bytes index) {
    return {_mm256_shuffle_epi8(table.v, index.v)};
}

// Codes as magnitudes and signs.
struct SignedBytes {
    __m256i sizes, signs;  // |c|; -1 where c is negative, else 0

    PLAIT_INLINE_MEMBER static SignedBytes of(Bytes c) {
        return {_mm256_abs_epi8(c.v), _mm256_cmpgt_epi8(_mm256_setzero_si256(), c.v)};
    }
    PLAIT_INLINE_MEMBER static SignedBytes load(const uint8_t* p) {
        return {Bytes::load(p).v, Bytes::load(p + 32).v};
    }
    PLAIT_INLINE_MEMBER void store(uint8_t* p) const {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), sizes);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), signs);
    }
};

struct Sums {
    __m256i pairs = _mm256_setzero_si256();  // 16-bit sums of up to kGroups calls
    __m256i total = _mm256_setzero_si256();

    template <Signs kSigns, int kGroups, class Codes>
    PLAIT_INLINE_MEMBER void add(Codes codes, Bytes a, int g) {
        const __m256i product = multiply<kSigns>(codes, a.v);
        pairs = g % kGroups == 0 ? product : _mm256_add_epi16(pairs, product);
        // Forces the addition here: GCC would build trees of sums, for which registers do not
        // suffice.
        asm("" : "+x"(pairs));
        if (g % kGroups == kGroups - 1) {
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            asm("" : "+x"(total));
        }
    }
    PLAIT_INLINE_MEMBER F32 value() const { return {_mm256_cvtepi32_ps(total)}; }

    template <Signs kSigns>
    PLAIT_INLINE_MEMBER static __m256i multiply(Bytes codes, __m256i a) {
        if constexpr (kSigns == Signs::kUnsigned) return _mm256_maddubs_epi16(codes.v, a);
        // |c| * sign(a, c) = c * a, and -128 * 128 * 2 fits 16 bits.
        if constexpr (kSigns == Signs::kOnFactor)
            return _mm256_maddubs_epi16(_mm256_abs_epi8(codes.v), _mm256_sign_epi8(a, codes.v));
        return multiply<Signs::kSplit>(SignedBytes::of(codes), a);
    }
    // With s = -1 for negative c, else 0: |c| * (a ^ s) = c * a + |c| * s, since a ^ -1 = -a - 1.
    // XOR runs on ports that do not multiply, while _mm256_sign_epi8 takes the place of a product.
    template <Signs kSigns>
    PLAIT_INLINE_MEMBER static __m256i multiply(SignedBytes codes, __m256i a) {
        return _mm256_maddubs_epi16(codes.sizes, _mm256_xor_si256(a, codes.signs));
    }
};

PLAIT_INLINE void store_codes(const F32 (&x)[4], int8_t* to, int16_t* sums) {
    const auto words = [&](int i) { return _mm256_cvtps_epi32(x[i].v); };
    // Packing works within halves of a register: four bytes of each x, then the other four of each.
    const __m256i fours = _mm256_packs_epi16(_mm256_packs_epi32(words(0), words(1)),
                                             _mm256_packs_epi32(words(2), words(3)));
    const __m256i c = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), c);
    const __m256i s =
        _mm256_sad_epu8(_mm256_xor_si256(c, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i pair = _mm256_add_epi64(s, _mm256_unpackhi_epi64(s, s));
    sums[0] = static_cast<int16_t>(_mm256_extract_epi16(pair, 0) - 16 * 128);
    sums[1] = static_cast<int16_t>(_mm256_extract_epi16(pair, 8) - 16 * 128);
}

// No instruction multiplies BF16.
using DotBF16 = ColumnBF16;

}  // namespace plait::cpu::PLAIT_ISA
