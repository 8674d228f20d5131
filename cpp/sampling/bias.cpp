#include "sampling/bias.h"

#include <cmath>

namespace plait::sampling {

void Bias::apply(Candidates& candidates) const {
    const auto of = [this](const Candidate& c) {
        const auto found = added.find(c.token);
        return found == added.end() ? 0.0 : found->second;
    };
    candidates.keep_if("bias", [&](const Candidate& c) {
        return (allowed.empty() || allowed.contains(c.token)) && !std::isinf(of(c));
    });
    candidates.change_logits([&](const Candidate& c) { return c.logit + of(c); });
}

}  // namespace plait::sampling
