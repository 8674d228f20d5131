// AVX-512: the instructions of AVX2 for eight lanes at a time. See expanded_product.h.
#pragma once

#include "backend/cpu/simd/avx2/expand.h"

namespace plait::cpu::PLAIT_ISA {

struct FourBlocks : EightLanes {
    using EightLanes::EightLanes;

    PLAIT_INLINE_MEMBER void dot(const LaneCodes& lanes, int64_t b, F32 (&to)[4]) const {
        __m256 low[4], high[4];
        EightLanes::dot(lanes, 0, b, low);
        EightLanes::dot(lanes, 8, b, high);
        for (int i = 0; i < 4; ++i)
            to[i] = {_mm512_insertf32x8(_mm512_castps256_ps512(low[i]), high[i], 1)};
    }
};

}  // namespace plait::cpu::PLAIT_ISA
