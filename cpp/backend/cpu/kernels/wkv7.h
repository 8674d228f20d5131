// Arguments of RWKV-7's recurrence. A state is [heads, keys, values], the transpose of the paper's,
// both as many as a head is wide, in tiles of 32 values: state_tiles.h.
#pragma once

#include "backend/cpu/kernels/state_tiles.h"

namespace plait::cpu {

struct Wkv7Args {
    Ref r, w, k, v, a, b, y;  // [n, heads, dim]; y apart
    TiledStates states;       // rows, columns: dim
};

}  // namespace plait::cpu
