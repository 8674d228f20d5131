#include "sampling/mirostat.h"

#include <cmath>
#include <numbers>

namespace plait::sampling {

void Mirostat::apply(Candidates& candidates, const History& history) const {
    const int32_t best = candidates.best().token;
    const Softmax softmax = candidates.softmax();
    const double least = -mu(history) * std::numbers::ln2;  // surprise <= mu, as log p
    candidates.keep_if("mirostat", [&](const Candidate& c) {
        return softmax.log_p(c) >= least || c.token == best;
    });
}

void Mirostat::accept(History& history, double probability) const {
    history.mirostat_mu = mu(history) - eta * (-std::log2(probability) - tau);
}

}  // namespace plait::sampling
