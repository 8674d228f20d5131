// -sum p log p in nats, of softmax(logits).
#pragma once

#include <cmath>

#include "sampling/candidates.h"

namespace plait::sampling {

inline double entropy(const Candidates& candidates) {
    const Softmax softmax = candidates.softmax();
    double sum = 0;
    for (const Candidate& c : candidates.items()) {
        const double log_p = softmax.log_p(c);
        const double p = std::exp(log_p);
        if (p > 0) sum -= p * log_p;
    }
    return sum;
}

}  // namespace plait::sampling
