// The element types alone, without the standard library: CPU kernels include this header.
#pragma once

#include <stdint.h>

#include "base/inline.h"

namespace plait {

enum class DType : uint8_t {
    f32,
    f16,
    bf16,
    i32,
    // All types from here on have blocks.
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    // The remaining types are those of tensor/blocks/expanded.h. Those from here to tq1_0 need tables
    // or divisions to be read, see is_irregular() in kernels/products/packed.h.
    iq2_xxs,
    iq2_xs,
    iq2_s,
    iq3_xxs,
    iq3_s,
    iq1_s,
    iq1_m,
    tq1_0,
    tq2_0,
    nvfp4,
    q1_0,
    q2_0,
};

PLAIT_INLINE constexpr bool is_float(DType dtype) { return dtype <= DType::bf16; }
PLAIT_INLINE constexpr bool is_block_type(DType dtype) { return dtype >= DType::q8_0; }
PLAIT_INLINE constexpr bool is_expanded(DType dtype) { return dtype >= DType::iq2_xxs; }

}  // namespace plait
