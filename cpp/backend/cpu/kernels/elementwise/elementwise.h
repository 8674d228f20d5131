// Arguments of kernels whose every output element is a function of one element of each operand.
#pragma once

#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct ElementwiseArgs {
    Ref a, b, y;  // a, y: [rows, row_elements]; b: the same, or as width or share say
    uint8_t extent;
    uint8_t how;   // activate, gate: plait::Activation
    float number;  // scale: the factor; softcap: the cap; clamped_swiglu: alpha
    float second;  // scale: the offset; clamped_swiglu: the limit
    int64_t fixed_rows;
    int64_t row_elements;
    int64_t width;  // not 0: elements after which b starts anew
    int64_t share;  // not 0: elements of a for each of b
};

constexpr int64_t kElementsPerTask = 4096;

PLAIT_INLINE int64_t elements(const ElementwiseArgs& args, const Frame& frame) {
    return frame.rows(args.extent, args.fixed_rows) * args.row_elements;
}

}  // namespace plait::cpu
