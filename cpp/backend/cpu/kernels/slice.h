// Arguments of the kernel that copies a part of each vector.
#pragma once

#include "backend/cpu/kernels/vectors.h"

namespace plait::cpu {

struct SliceArgs {
    Ref x, y;  // vectors of x_width; of vectors.width
    int64_t x_width;
    int64_t begin;    // the first element of x that is copied
    Vectors vectors;  // of y
};

}  // namespace plait::cpu
