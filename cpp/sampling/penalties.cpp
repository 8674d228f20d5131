#include "sampling/penalties.h"

#include <unordered_map>

namespace plait::sampling {

void Penalties::apply(Candidates& candidates, const History& history) const {
    std::unordered_map<int32_t, int64_t> counts;
    for (const int32_t token : last_tokens(history, last_n)) ++counts[token];
    if (counts.empty()) return;
    candidates.change_logits([&](const Candidate& c) {
        const auto found = counts.find(c.token);
        if (found == counts.end()) return c.logit;
        const double repeated = c.logit > 0 ? c.logit / repetition : c.logit * repetition;
        return repeated - static_cast<double>(found->second) * frequency - presence;
    });
}

}  // namespace plait::sampling
