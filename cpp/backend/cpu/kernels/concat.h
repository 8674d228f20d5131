// Arguments of the kernel that joins vectors.
#pragma once

#include "backend/cpu/kernels/vectors.h"

namespace plait::cpu {

struct ConcatArgs {
    Ref a, b, y;          // vectors of a_width; of the rest of vectors.width; of both
    uint8_t b_is_shared;  // b has one vector for all of a row's
    int64_t a_width;
    Vectors vectors;  // of y
};

}  // namespace plait::cpu
