// The fewest most likely tokens with at least p together. Holtzman et al. 2020, arXiv:1904.09751.
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct TopP {
    double p;

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
