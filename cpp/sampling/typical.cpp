#include "sampling/typical.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sampling/entropy.h"

namespace plait::sampling {

void Typical::apply(Candidates& candidates) const {
    struct Place {
        double distance;
        double probability;
        Candidate candidate;
    };
    const Softmax softmax = candidates.softmax();
    const double h = entropy(candidates);
    std::vector<Place> places;
    places.reserve(candidates.size());
    for (const Candidate& c : candidates.items()) {
        const double log_p = softmax.log_p(c);
        places.push_back({std::abs(-log_p - h), std::exp(log_p), c});
    }
    const auto later = [](const Place& a, const Place& b) {
        return a.distance != b.distance ? a.distance > b.distance
                                        : comes_before(b.candidate, a.candidate);
    };
    // Few are needed mostly, so they are taken from a heap.
    std::make_heap(places.begin(), places.end(), later);
    std::vector<Candidate> kept;
    for (double sum = 0; sum < p && !places.empty(); places.pop_back()) {
        std::pop_heap(places.begin(), places.end(), later);
        sum += places.back().probability;
        kept.push_back(places.back().candidate);
    }
    candidates.keep(std::move(kept));
}

}  // namespace plait::sampling
