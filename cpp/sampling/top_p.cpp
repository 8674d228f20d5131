#include "sampling/top_p.h"

#include <cmath>

namespace plait::sampling {

void TopP::apply(Candidates& candidates) const {
    const Softmax softmax = candidates.softmax();
    double sum = 0;
    size_t kept = 0;
    // Few are needed mostly, so few are put in order: 64, then four times as many each time.
    for (size_t n = 64; kept < candidates.size(); n *= 4) {
        const auto sorted = candidates.sort_first(n);
        while (kept < sorted.size() && sum < p) {
            sum += std::exp(softmax.log_p(sorted[kept]));
            ++kept;
        }
        if (sum >= p) break;
    }
    candidates.keep_first(kept);
}

}  // namespace plait::sampling
