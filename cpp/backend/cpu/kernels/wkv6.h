// Arguments of RWKV-6's recurrence. A state is [heads, keys, values], both as many as a head is
// wide, in tiles of 32 values: state_tiles.h.
#pragma once

#include "backend/cpu/kernels/state_tiles.h"

namespace plait::cpu {

struct Wkv6Args {
    Ref r, k, v, w, y;   // [n, heads, dim]; y apart
    Ref u;               // [heads, dim]
    TiledStates states;  // rows, columns: dim
};

}  // namespace plait::cpu
