#include "sampling/top_n_sigma.h"

#include <cmath>

namespace plait::sampling {

void TopNSigma::apply(Candidates& candidates) const {
    const auto count = static_cast<double>(candidates.size());
    double sum = 0;
    for (const Candidate& c : candidates.items()) sum += c.logit;
    const double mean = sum / count;
    double squares = 0;
    for (const Candidate& c : candidates.items()) squares += (c.logit - mean) * (c.logit - mean);
    const double least = candidates.best().logit - n * std::sqrt(squares / count);
    candidates.keep_if("top_n_sigma", [&](const Candidate& c) { return c.logit >= least; });
}

}  // namespace plait::sampling
