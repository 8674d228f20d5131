// Tokens at least p times as likely as the likeliest. Nguyen et al. 2024, arXiv:2407.01082.
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct MinP {
    double p;

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
