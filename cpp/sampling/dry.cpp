#include "sampling/dry.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

namespace plait::sampling {
namespace {

// For each i the length of the longest common start of `tokens` and tokens[i..]: Gusfield 1997,
// "Algorithms on Strings, Trees and Sequences", section 1.4. Linear in the number of tokens.
std::vector<int64_t> z_values(const std::vector<int32_t>& tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    const auto at = [&](int64_t i) { return tokens[static_cast<size_t>(i)]; };
    std::vector<int64_t> z(tokens.size(), 0);
    int64_t left = 0;
    int64_t right = 0;  // [left, right): the match that reaches furthest
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

void Dry::apply(Candidates& candidates, const History& history) const {
    const auto window = last_tokens(history, last_n);
    const std::vector<int32_t> backwards(window.rbegin(), window.rend());
    const auto breaker = std::find_if(backwards.begin(), backwards.end(),
                                      [this](int32_t token) { return breakers.contains(token); });
    const int64_t longest = breaker - backwards.begin();
    if (longest < allowed_length) return;

    // What came after an earlier place is the token before it in backward order.
    std::unordered_map<int32_t, int64_t> repeats;
    const auto z = z_values(backwards);
    for (size_t i = 1; i < backwards.size(); ++i) {
        const int64_t length = std::min(z[i], longest);
        int64_t& known = repeats[backwards[i - 1]];
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

}  // namespace plait::sampling
