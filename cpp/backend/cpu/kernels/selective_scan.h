// Arguments of the selective scan. A state is [k, channels] in tiles of 32 channels: state_tiles.h.
#pragma once

#include "backend/cpu/kernels/state_tiles.h"

namespace plait::cpu {

struct SelectiveScanArgs {
    Ref x, dt, y;        // [n, channels]; y apart
    Ref a, d;            // [channels, k], [channels]
    Ref b, c;            // [n, k]
    TiledStates states;  // heads: 1, rows: k, columns: channels
};

}  // namespace plait::cpu
