// NEON with the dot product extension (SDOT), and with products of 8-bit matrices (SMMLA) and of BF16
// matrices (BFMMLA) for the instruction sets that have them. See simd/dot.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

// SDOT multiplies signed bytes. Codes without a sign are at most 126, so they are signed bytes too.
constexpr bool kUnsignedDot = false;
// 1.5 * 2^23. Adding an integer to the bits of this float adds the same integer to its value, so a
// sum that starts here needs no conversion to float.
constexpr float kSumsBase = 12582912.0f;
constexpr bool kShiftsBytes = true;
constexpr int kMinRowsForInverted = 64;

struct TileShape {
    static constexpr bool kSharesPrefetches = false;
    static constexpr bool kWideForSlowCodes = true;
    static constexpr int kWidePanels = 1;
    static constexpr int kHighPanels = 2;
    static constexpr int kBlockPanelsOfOneRow = 2;
    static constexpr bool kReadsPanelsInTurn = false;
    static constexpr bool kStartsAtOffset = true;
    static constexpr int kFloatRows = 4;
    static constexpr int kFloatPanels = 4;
    static constexpr int kPanelsOfOneRow = 8;
    static constexpr int kHalfPanelsOfOneRow = 8;
};

struct Bytes {
    uint8x16_t v;
    int lane = 0;  // of four(): the lane of v that is meant, in every lane

    PLAIT_INLINE_MEMBER static Bytes load(const uint8_t* p) { return {vld1q_u8(p)}; }
    PLAIT_INLINE_MEMBER static Bytes set(uint8_t x) { return {vdupq_n_u8(x)}; }
    // Four groups share a load, since SDOT takes a lane as its second factor.
    PLAIT_INLINE_MEMBER static Bytes four(const int8_t* p, int group) {
        return {vreinterpretq_u8_s8(vld1q_s8(p + group / 4 * 16)), group % 4};
    }
    PLAIT_INLINE_MEMBER static Bytes table(const uint8_t* p) { return load(p); }
    PLAIT_INLINE_MEMBER Bytes left(int n) const { return {v << n}; }
    PLAIT_INLINE_MEMBER Bytes right(int n) const { return {v >> n}; }
    // The words of lanes 2 q and 2 q + 1, each followed by its high nibbles.
    PLAIT_INLINE_MEMBER Bytes spread(int q) const {
        const uint32x4_t words = vreinterpretq_u32_u8(v);
        const uint32x4_t high = vreinterpretq_u32_u8(v >> 4);
        return {vreinterpretq_u8_u32(q == 0 ? vzip1q_u32(words, high) : vzip2q_u32(words, high))};
    }
};

PLAIT_INLINE Bytes operator&(Bytes a, Bytes b) { return {vandq_u8(a.v, b.v)}; }
PLAIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {vorrq_u8(a.v, b.v)}; }
PLAIT_INLINE Bytes lookup(Bytes table, Bytes index) { return {vqtbl1q_u8(table.v, index.v)}; }

struct Sums {
    int32x4_t v = vreinterpretq_s32_f32(vdupq_n_f32(kSumsBase));

    PLAIT_INLINE_MEMBER static Sums from(F32 start) { return {vreinterpretq_s32_f32(start.v)}; }
    template <Signs kSigns, int kGroups>
    PLAIT_INLINE_MEMBER void add(Bytes codes, Bytes a, int) {
        static_assert(kSigns != Signs::kInverted);
        const int8x16_t c = vreinterpretq_s8_u8(codes.v), x = vreinterpretq_s8_u8(a.v);
        switch (a.lane) {  // a constant once the loops over groups are unrolled
        case 0: v = vdotq_laneq_s32(v, c, x, 0); break;
        case 1: v = vdotq_laneq_s32(v, c, x, 1); break;
        case 2: v = vdotq_laneq_s32(v, c, x, 2); break;
        default: v = vdotq_laneq_s32(v, c, x, 3); break;
        }
    }
    PLAIT_INLINE_MEMBER F32 value() const { return {vreinterpretq_f32_s32(v)}; }
};

PLAIT_INLINE void store_codes(const F32 (&x)[8], int8_t* to, int16_t* sums) {
    const auto halves = [&](int i) {
        return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(x[i].v)),
                            vmovn_s32(vcvtnq_s32_f32(x[i + 1].v)));
    };
    for (int half = 0; half < 2; ++half) {
        const int16x8_t low = halves(4 * half), high = halves(4 * half + 2);
        vst1q_s8(to + 16 * half, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        sums[half] = vaddvq_s16(vaddq_s16(low, high));
    }
}

// BF16 is multiplied in matrices or not at all.
using DotBF16 = ColumnBF16;

#if defined(__ARM_FEATURE_MATMUL_INT8)
// A register of results has two rows of activations by two lanes of a panel: row 0 with lanes 0 and
// 1, then row 1 with the same lanes.
struct TwoByTwo {
    // Lanes 2 q and 2 q + 1 of `panel`, once for each row.
    PLAIT_INLINE_MEMBER static F32 lanes(F32 panel, int q) {
        const float64x2_t pairs = vreinterpretq_f64_f32(panel.v);
        return {
            vreinterpretq_f32_f64(q == 0 ? vdupq_laneq_f64(pairs, 0) : vdupq_laneq_f64(pairs, 1))};
    }
    // The four lanes of a row, from the registers of both pairs of lanes.
    PLAIT_INLINE_MEMBER static F32 row(F32 low, F32 high, int row) {
        const float64x2_t a = vreinterpretq_f64_f32(low.v), b = vreinterpretq_f64_f32(high.v);
        return {vreinterpretq_f32_f64(row == 0 ? vzip1q_f64(a, b) : vzip2q_f64(a, b))};
    }
};

struct ByteMatrix : TwoByTwo {
    int32x4_t v = vreinterpretq_s32_f32(vdupq_n_f32(kSumsBase));

    PLAIT_INLINE_MEMBER static ByteMatrix from(F32 start) {
        ByteMatrix m;
        m.v = vreinterpretq_s32_f32(start.v);
        return m;
    }
    PLAIT_INLINE_MEMBER void add(Bytes codes, Bytes rows) {
        v = vmmlaq_s32(v, vreinterpretq_s8_u8(rows.v), vreinterpretq_s8_u8(codes.v));
    }
    PLAIT_INLINE_MEMBER F32 value() const { return {vreinterpretq_f32_s32(v)}; }

    // Writes 16 columns of two rows, eight columns of each at a time.
    PLAIT_INLINE_MEMBER static void interleave(const int8_t* a, const int8_t* b, int8_t* to) {
        const int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(a));
        const int64x2_t y = vreinterpretq_s64_s8(vld1q_s8(b));
        vst1q_s8(to, vreinterpretq_s8_s64(vzip1q_s64(x, y)));
        vst1q_s8(to + 16, vreinterpretq_s8_s64(vzip2q_s64(x, y)));
    }

    // The sums of one row: each register has two sums for each of two lanes.
    struct OneRow {
        int32x4_t v = vreinterpretq_s32_f32(float32x4_t{kSumsBase, 0.0f, kSumsBase, 0.0f});

        PLAIT_INLINE_MEMBER static OneRow from(float start) {
            uint32_t bits;
            memcpy(&bits, &start, sizeof bits);
            return {vreinterpretq_s32_u64(vdupq_n_u64(bits))};
        }
        PLAIT_INLINE_MEMBER void add(Bytes codes, Bytes row) {
            v = vdotq_s32(v, vreinterpretq_s8_u8(codes.v), vreinterpretq_s8_u8(row.v));
        }
        PLAIT_INLINE_MEMBER static F32 value(const OneRow (&sums)[2]) {
            return {vreinterpretq_f32_s32(vpaddq_s32(sums[0].v, sums[1].v))};
        }
    };
    // Eight of the 16 columns at p, twice.
    PLAIT_INLINE_MEMBER static Bytes columns(const int8_t* p, int half) {
        const int64x2_t both = vreinterpretq_s64_s8(vld1q_s8(p));
        return {
            vreinterpretq_u8_s64(half == 0 ? vdupq_laneq_s64(both, 0) : vdupq_laneq_s64(both, 1))};
    }
};
#endif

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct Bf16Matrix : TwoByTwo {
    PLAIT_INLINE_MEMBER static bfloat16x8_t load(const uint16_t* p) {
        return vreinterpretq_bf16_u16(vld1q_u16(p));
    }
    // One row; the results of the other are not used.
    PLAIT_INLINE_MEMBER static bfloat16x8_t load_row(const uint16_t* p) {
        return vreinterpretq_bf16_u16(vcombine_u16(vld1_u16(p), vdup_n_u16(0)));
    }
    PLAIT_INLINE_MEMBER static F32 add(F32 y, bfloat16x8_t rows, bfloat16x8_t lanes) {
        return {vbfmmlaq_f32(y.v, rows, lanes)};
    }
};
#endif

}  // namespace plait::cpu::PLAIT_ISA
