#include "sampling/xtc.h"

#include <cmath>

namespace plait::sampling {

void Xtc::apply(Candidates& candidates, double drawn) const {
    if (drawn >= probability) return;
    const Softmax softmax = candidates.softmax();
    const double least = std::log(threshold);
    const Candidate* last = nullptr;
    for (const Candidate& c : candidates.items())
        if (softmax.log_p(c) >= least && (last == nullptr || comes_before(*last, c))) last = &c;
    if (last == nullptr) return;
    const int32_t kept = last->token;
    candidates.keep_if(
        "xtc", [&](const Candidate& c) { return softmax.log_p(c) < least || c.token == kept; });
}

}  // namespace plait::sampling
