#include "sampling/min_p.h"

#include <cmath>

namespace plait::sampling {

void MinP::apply(Candidates& candidates) const {
    const double least = candidates.best().logit + std::log(p);
    candidates.keep_if("min_p", [&](const Candidate& c) { return c.logit >= least; });
}

}  // namespace plait::sampling
