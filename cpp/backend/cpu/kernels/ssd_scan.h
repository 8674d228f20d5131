// Arguments of Mamba-2's scan. A state is [heads, k, p] in tiles of 32 of p: state_tiles.h.
#pragma once

#include "backend/cpu/kernels/state_tiles.h"

namespace plait::cpu {

struct SsdScanArgs {
    Ref x, y;  // [n, heads, p]; apart
    Ref dt;    // [n, heads]
    Ref a, d;  // [heads]
    Ref b, c;  // [n, groups, k]; heads / groups heads share them
    int64_t groups;
    TiledStates states;  // rows: k, columns: p
};

}  // namespace plait::cpu
