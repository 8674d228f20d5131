// Numbers added to the logits of chosen tokens, and tokens that may not or only may be drawn.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "sampling/candidates.h"

namespace plait::sampling {

struct Bias {
    std::unordered_map<int32_t, double> added;  // -inf forbids
    std::unordered_set<int32_t> allowed;        // empty: all

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
