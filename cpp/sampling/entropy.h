// -sum p log p in nats, of softmax(logits).
#pragma once

#include <cmath>

#include "sampling/candidates.h"

namespace plait::sampling {

inline double entropy(const Candidates& candidates) {
    const double log_total = candidates.log_total();
    double sum = 0;
    for (const Candidate& c : candidates.items()) {
        const double log_p = c.logit - log_total;
        const double p = std::exp(log_p);
        if (p > 0) sum -= p * log_p;
    }
    return sum;
}

}  // namespace plait::sampling
