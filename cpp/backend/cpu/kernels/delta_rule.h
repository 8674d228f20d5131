// Arguments of the gated delta rule. A state is [heads, key_dim, value_dim] in tiles of 32 of
// value_dim: state_tiles.h.
#pragma once

#include "backend/cpu/kernels/state_tiles.h"

namespace plait::cpu {

struct DeltaRuleArgs {
    Ref q, k;     // [n, key_heads, key_dim]; heads / key_heads heads share them
    Ref v, y;     // [n, heads, value_dim]; apart
    Ref g, beta;  // [n, heads]
    int64_t key_heads;
    TiledStates states;  // rows: key_dim, columns: value_dim
};

}  // namespace plait::cpu
