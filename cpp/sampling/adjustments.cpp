#include "sampling/adjustments.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

namespace plait::sampling {
namespace {

// z[i] is the length of the longest common prefix of `tokens` and tokens[i..]. Takes linear time.
// Gusfield 1997, "Algorithms on Strings, Trees and Sequences", section 1.4.
std::vector<int64_t> z_values(const std::vector<int32_t>& tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    const auto at = [&](int64_t i) { return tokens[static_cast<size_t>(i)]; };
    std::vector<int64_t> z(tokens.size(), 0);
    int64_t left = 0;
    int64_t right = 0;  // [left, right): the match that ends last
    for (int64_t i = 1; i < n; ++i) {
        int64_t length = 0;
        if (i < right) length = std::min(right - i, z[static_cast<size_t>(i - left)]);
        while (i + length < n && at(length) == at(i + length)) ++length;
        z[static_cast<size_t>(i)] = length;
        if (i + length > right) {
            left = i;
            right = i + length;
        }
    }
    return z;
}

}  // namespace

void Bias::apply(Candidates& candidates) const {
    const auto added_to = [this](const Candidate& c) {
        const auto found = added.find(c.token);
        return found == added.end() ? 0.0 : found->second;
    };
    candidates.keep_if("bias", [&](const Candidate& c) {
        return (allowed.empty() || allowed.contains(c.token)) && !std::isinf(added_to(c));
    });
    candidates.change_logits([&](const Candidate& c) { return c.logit + added_to(c); });
}

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

void Dry::apply(Candidates& candidates, const History& history) const {
    const auto window = last_tokens(history, last_n);
    const std::vector<int32_t> reversed(window.rbegin(), window.rend());
    const auto breaker = std::find_if(reversed.begin(), reversed.end(),
                                      [this](int32_t token) { return breakers.contains(token); });
    const int64_t longest = breaker - reversed.begin();
    if (longest < allowed_length) return;

    // The token that followed an earlier occurrence precedes it in the reversed order.
    std::unordered_map<int32_t, int64_t> repeats;
    const auto z = z_values(reversed);
    for (size_t i = 1; i < reversed.size(); ++i) {
        if (breakers.contains(reversed[i - 1])) continue;
        const int64_t length = std::min(z[i], longest);
        int64_t& known = repeats[reversed[i - 1]];
        known = std::max(known, length);
    }
    candidates.change_logits([&](const Candidate& c) {
        const auto found = repeats.find(c.token);
        if (found == repeats.end() || found->second < allowed_length) return c.logit;
        const double penalty =
            multiplier * std::pow(base, static_cast<double>(found->second - allowed_length));
        return c.logit - penalty;
    });
}

double Temperature::effective(const Candidates& candidates) const {
    if (range == 0 || candidates.size() < 2) return value;
    const double low = std::max(0.0, value - range);
    const double high = value + range;
    const double max_entropy = std::log(static_cast<double>(candidates.size()));
    // Rounding can lift the entropy slightly above its maximum.
    const double relative = std::min(1.0, candidates.entropy() / max_entropy);
    return low + (high - low) * std::pow(relative, exponent);
}

void Temperature::apply(Candidates& candidates) const {
    const double t = effective(candidates);
    if (t == 0) {
        candidates.sort_first(1);
        candidates.keep_first(1);
        return;
    }
    // Probabilities depend only on differences, and differences from the highest logit cannot
    // overflow to +inf.
    const double highest = candidates.best().logit;
    const double base = std::isfinite(highest / t) ? highest / t : 0.0;
    candidates.change_logits([&](const Candidate& c) { return base + (c.logit - highest) / t; });
}

}  // namespace plait::sampling
