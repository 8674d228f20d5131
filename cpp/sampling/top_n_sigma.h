// Tokens whose logit is at most n standard deviations (of all logits that are left) below the highest.
// Tang et al. 2024, "Top-n-sigma: not all logits are you need", arXiv:2411.07641.
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct TopNSigma {
    double n;

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
