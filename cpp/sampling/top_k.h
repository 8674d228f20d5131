// The k highest logits, lower ids first among equals. Fan et al. 2018, arXiv:1805.04833.
#pragma once

#include "sampling/candidates.h"

namespace plait::sampling {

struct TopK {
    int64_t k;

    void apply(Candidates& candidates) const;
};

}  // namespace plait::sampling
