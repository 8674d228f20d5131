#include "sampling/typical.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "sampling/entropy.h"

namespace plait::sampling {

void Typical::apply(Candidates& candidates) const {
    struct Place {
        double distance;
        double probability;
        Candidate candidate;
    };
    const double log_total = candidates.log_total();
    const double h = entropy(candidates);
    std::vector<Place> places;
    places.reserve(candidates.size());
    for (const Candidate& c : candidates.items()) {
        const double log_p = c.logit - log_total;
        places.push_back({std::abs(-log_p - h), std::exp(log_p), c});
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
        return a.distance != b.distance ? a.distance < b.distance
                                        : comes_before(a.candidate, b.candidate);
    });
    std::unordered_set<int32_t> kept;
    double sum = 0;
    for (const Place& place : places) {
        if (sum >= p) break;
        sum += place.probability;
        kept.insert(place.candidate.token);
    }
    candidates.keep_if("typical", [&](const Candidate& c) { return kept.contains(c.token); });
}

}  // namespace plait::sampling
