#include "sampling/temperature.h"

#include <algorithm>
#include <cmath>

#include "sampling/entropy.h"

namespace plait::sampling {

double Temperature::of(const Candidates& candidates) const {
    if (range == 0 || candidates.size() < 2) return value;
    const double low = std::max(0.0, value - range);
    const double high = value + range;
    const double most = std::log(static_cast<double>(candidates.size()));
    // Rounding may put the entropy a hair above its most.
    const double share = std::min(1.0, entropy(candidates) / most);
    return low + (high - low) * std::pow(share, exponent);
}

void Temperature::apply(Candidates& candidates) const {
    const double t = of(candidates);
    if (t == 0) {
        candidates.sort_first(1);
        candidates.keep_first(1);
        return;
    }
    // Probabilities depend on differences alone, and those of the highest cannot overflow upwards.
    const double highest = candidates.best().logit;
    const double base = std::isfinite(highest / t) ? highest / t : 0.0;
    candidates.change_logits([&](const Candidate& c) { return base + (c.logit - highest) / t; });
}

}  // namespace plait::sampling
