// One lane. See expanded_product.h.
#pragma once

namespace plait::cpu::PLAIT_ISA {

using ExpandedCodes = LaneCodes;

class FourBlocks {
public:
    PLAIT_INLINE_MEMBER FourBlocks(const int8_t* a, int64_t stride, const float* offsets)
        : _a(a), _stride(stride), _offsets(offsets) {}

    template <int kUnit>
    PLAIT_INLINE_MEMBER void dot(const LaneCodes& lanes, int64_t b, F32 (&to)[4]) const {
        for (int i = 0; i < 4; ++i) {
            const uint8_t* codes = lanes.codes[0] + 32 * (b + i);
            const float* scales = lanes.scales[0] + 2 * (b + i);
            int sums[2] = {0, 0};
            for (int c = 0; c < 32; ++c) sums[c / 16] += codes[c] * _a[_stride * i + c];
            const F32 first{static_cast<float>(sums[0]) - _offsets[i]};
            const F32 second{static_cast<float>(sums[1]) - _offsets[4 + i]};
            to[i] = kUnit == 32 ? F32{scales[0]} * (first + second)
                                : fma(F32{scales[1]}, second, F32{scales[0]} * first);
        }
    }

private:
    const int8_t* _a;
    int64_t _stride;
    const float* _offsets;
};

}  // namespace plait::cpu::PLAIT_ISA
