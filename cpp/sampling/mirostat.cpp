#include "sampling/mirostat.h"

#include <cmath>
#include <numbers>

namespace plait::sampling {

void Mirostat::apply(Candidates& candidates, const History& history) const {
    const int32_t best = candidates.best().token;
    // surprise <= mu, in nats: log p >= -mu log 2
    const double least = candidates.log_total() - mu(history) * std::numbers::ln2;
    candidates.keep_if("mirostat",
                       [&](const Candidate& c) { return c.logit >= least || c.token == best; });
}

void Mirostat::accept(History& history, double probability) const {
    history.mirostat_mu = mu(history) - eta * (-std::log2(probability) - tau);
}

}  // namespace plait::sampling
