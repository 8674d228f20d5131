#include "sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace plait::sampling {

void TopK::apply(Candidates& candidates) const {
    const auto n = static_cast<size_t>(k);
    candidates.sort_first(n);
    candidates.keep_first(n);
}

void TopP::apply(Candidates& candidates) const {
    const Softmax softmax = candidates.softmax();
    double sum = 0;
    size_t kept = 0;
    // Usually a few candidates suffice, so sort 64 at first, then four times as many each time.
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

void MinP::apply(Candidates& candidates) const {
    const double min_logit = candidates.best().logit + std::log(p);
    candidates.keep_if("min_p", [&](const Candidate& c) { return c.logit >= min_logit; });
}

void TopNSigma::apply(Candidates& candidates) const {
    const auto count = static_cast<double>(candidates.size());
    double sum = 0;
    for (const Candidate& c : candidates.items()) sum += c.logit;
    const double mean = sum / count;
    double squares = 0;
    for (const Candidate& c : candidates.items()) squares += (c.logit - mean) * (c.logit - mean);
    const double min_logit = candidates.best().logit - n * std::sqrt(squares / count);
    candidates.keep_if("top_n_sigma", [&](const Candidate& c) { return c.logit >= min_logit; });
}

void Typical::apply(Candidates& candidates) const {
    struct Entry {
        double distance;
        double probability;
        Candidate candidate;
    };
    const Softmax softmax = candidates.softmax();
    const double entropy = candidates.entropy();
    std::vector<Entry> heap;
    heap.reserve(candidates.size());
    for (const Candidate& c : candidates.items()) {
        const double log_p = softmax.log_p(c);
        heap.push_back({std::abs(-log_p - entropy), std::exp(log_p), c});
    }
    const auto later = [](const Entry& a, const Entry& b) {
        return a.distance != b.distance ? a.distance > b.distance
                                        : comes_before(b.candidate, a.candidate);
    };
    // Usually a few candidates suffice, so a heap is cheaper than sorting all.
    std::make_heap(heap.begin(), heap.end(), later);
    std::vector<Candidate> kept;
    for (double sum = 0; sum < p && !heap.empty(); heap.pop_back()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        sum += heap.back().probability;
        kept.push_back(heap.back().candidate);
    }
    candidates.keep(std::move(kept));
}

void Xtc::apply(Candidates& candidates, double drawn) const {
    if (drawn >= probability) return;
    const Softmax softmax = candidates.softmax();
    const double min_log_p = std::log(threshold);
    const Candidate* last = nullptr;
    for (const Candidate& c : candidates.items())
        if (softmax.log_p(c) >= min_log_p && (last == nullptr || comes_before(*last, c))) last = &c;
    if (last == nullptr) return;
    const int32_t kept = last->token;
    candidates.keep_if(
        "xtc", [&](const Candidate& c) { return softmax.log_p(c) < min_log_p || c.token == kept; });
}

void Mirostat::apply(Candidates& candidates, const History& history) const {
    const int32_t best = candidates.best().token;
    const Softmax softmax = candidates.softmax();
    const double min_log_p = -mu(history) * std::numbers::ln2;  // surprise <= mu, in terms of log p
    candidates.keep_if("mirostat", [&](const Candidate& c) {
        return softmax.log_p(c) >= min_log_p || c.token == best;
    });
}

void Mirostat::accept(History& history, double probability) const {
    history.mirostat_mu = mu(history) - eta * (-std::log2(probability) - tau);
}

}  // namespace plait::sampling
