// NEON. See expanded_product.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

using ExpandedCodes = LaneCodes;

class FourBlocks {
public:
    PLAIT_INLINE_MEMBER FourBlocks(const int8_t* a, int64_t stride, const float* offsets) {
        for (int unit = 0; unit < 2; ++unit) {
            for (int i = 0; i < 4; ++i) _a[unit][i] = vld1q_s8(a + stride * i + 16 * unit);
            _offsets[unit] = vld1q_f32(offsets + 4 * unit);
        }
    }

    template <int kUnit>
    PLAIT_INLINE_MEMBER void dot(const LaneCodes& lanes, int64_t b, F32 (&to)[4]) const {
        for (int lane = 0; lane < 4; ++lane) {
            const uint8_t* codes = lanes.codes[lane] + 32 * b;
            const float32x4x2_t s = vld2q_f32(lanes.scales[lane] + 2 * b);
            const float32x4_t first = sums(codes, 0), second = sums(codes, 1);
            if constexpr (kUnit == 32)
                to[lane] = {vmulq_f32(s.val[0], vaddq_f32(first, second))};
            else
                to[lane] = {vfmaq_f32(vmulq_f32(s.val[0], first), s.val[1], second)};
        }
        transpose(to);
    }

private:
    PLAIT_INLINE_MEMBER float32x4_t sums(const uint8_t* codes, int unit) const {
        const auto fours = [&](int i) {
            const uint8x16_t c = vld1q_u8(codes + 32 * i + 16 * unit);
            return vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(c), _a[unit][i]);
        };
        const int32x4_t all =
            vpaddq_s32(vpaddq_s32(fours(0), fours(1)), vpaddq_s32(fours(2), fours(3)));
        return vsubq_f32(vcvtq_f32_s32(all), _offsets[unit]);
    }

    int8x16_t _a[2][4];
    float32x4_t _offsets[2];
};

}  // namespace plait::cpu::PLAIT_ISA
