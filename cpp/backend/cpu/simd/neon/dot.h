// NEON with the dot product extension (SDOT). See simd/dot.h.
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
    static constexpr bool kWideForSlowCodes = true;
    static constexpr int kWidePanels = 2;
    static constexpr int kHighPanels = 2;
    static constexpr int kFloatRows = 4;
    static constexpr int kFloatPanels = 4;
    static constexpr int kPanelsOfOneRow = 8;
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
};

PLAIT_INLINE Bytes operator&(Bytes a, Bytes b) { return {vandq_u8(a.v, b.v)}; }
PLAIT_INLINE Bytes operator|(Bytes a, Bytes b) { return {vorrq_u8(a.v, b.v)}; }
PLAIT_INLINE Bytes lookup(Bytes table, Bytes index) { return {vqtbl1q_u8(table.v, index.v)}; }

struct Sums {
    int32x4_t v = vreinterpretq_s32_f32(vdupq_n_f32(kSumsBase));

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

// Only neon_bf16 multiplies BF16.
using DotBF16 = ColumnBF16;

}  // namespace plait::cpu::PLAIT_ISA
