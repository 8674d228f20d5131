// Locally typical sampling: the fewest tokens with at least p together, those first whose surprise
// -log p(i) is nearest to the entropy. Meister et al. 2022, arXiv:2202.00666.
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct Typical {
    double p;

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
