// Arguments of the elementwise kernels: each element of the result depends on one element of each
// operand.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

struct ElementwiseArgs {
    Ref a, b, y;  // a, y: [rows, row_elements]; b: the same, unless b_period or b_repeat is set
    Extent extent;
    Activation activation;  // of activate and gate
    // scale: the factor; softcap: the cap; clamp: the limit; clamped_swiglu: alpha
    float parameter;
    float second_parameter;  // scale: the offset; clamped_swiglu: the limit
    int64_t fixed_rows;
    int64_t row_elements;
    int64_t b_period;  // if not 0: b has this many elements, and starts again after them
    int64_t b_repeat;  // if not 0: each element of b serves this many successive elements of a
};

constexpr int64_t kElementsPerTask = 4096;

PLAIT_INLINE int64_t elements(const ElementwiseArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.row_elements;
}

}  // namespace plait::cpu
