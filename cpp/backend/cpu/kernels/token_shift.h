// Arguments of the kernel that hands each token its predecessor. A state is the last row, [width].
#pragma once

#include "backend/cpu/kernels/states.h"

namespace plait::cpu {

struct TokenShiftArgs {
    Ref x, y;  // [n, width]; apart
    int64_t width;
    StateArgs states;
};

constexpr int64_t kShiftChunk = 1024;  // channels of a task

}  // namespace plait::cpu
