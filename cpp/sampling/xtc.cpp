#include "sampling/xtc.h"

#include <cmath>

namespace plait::sampling {

void Xtc::apply(Candidates& candidates, double drawn) const {
    if (drawn >= probability) return;
    const double least = candidates.log_total() + std::log(threshold);
    const Candidate* last = nullptr;
    for (const Candidate& c : candidates.items())
        if (c.logit >= least && (last == nullptr || comes_before(*last, c))) last = &c;
    if (last == nullptr) return;
    const int32_t kept = last->token;
    candidates.keep_if("xtc",
                       [&](const Candidate& c) { return c.logit < least || c.token == kept; });
}

}  // namespace plait::sampling
