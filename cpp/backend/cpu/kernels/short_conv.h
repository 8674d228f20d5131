// Arguments of the short causal convolution of a recurrent layer. A state is the last `taps` - 1
// inputs, [taps - 1, channels], the oldest first.
#pragma once

#include "backend/cpu/kernels/states.h"

namespace plait::cpu {

struct ShortConvArgs {
    Ref x, y;    // [n, channels]; apart
    Ref weight;  // [channels, taps]
    Ref bias;    // [channels]
    uint8_t has_bias;
    int64_t channels;
    int64_t taps;
    StateArgs states;
};

constexpr int64_t kConvChunk = 256;  // channels of a task

}  // namespace plait::cpu
