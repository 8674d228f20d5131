#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace plait::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// Throws if a logit is NaN or +inf. check_filled() handles rows of -inf.
void check_finite(std::span<const float> logits) {
    constexpr float kMax = std::numeric_limits<float>::max();
    unsigned wrong = 0;
    for (const float x : logits) wrong |= static_cast<unsigned>(!(x <= kMax));
    if (wrong == 0) return;
    const bool nan =
        std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
    throw InvalidArgument(nan ? "logits hold NaN" : "logits hold +inf");
}

bool allowed(std::span<const uint32_t> mask, size_t token) {
    return mask.empty() || (mask[token / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

void Candidates::fill(std::span<const float> logits, std::span<const uint32_t> mask) {
    check_finite(logits);
    items_.clear();
    n_sorted_ = 0;
    for (size_t i = 0; i < logits.size(); ++i)
        if (logits[i] != kForbidden && allowed(mask, i))
            items_.push_back({static_cast<int32_t>(i), logits[i]});
    check_filled(mask);
}

void Candidates::fill_best(std::span<const float> logits, std::span<const uint32_t> mask,
                           size_t n) {
    check_finite(logits);
    items_.clear();
    n_sorted_ = 0;
    // Invariant: the items contain the best n so far, all of which are at least `last`. A later
    // logit equal to `last` cannot enter the best n, because its token id is higher.
    float last = kForbidden;
    const size_t capacity = n + std::max<size_t>(n, 256);
    for (size_t i = 0; i < logits.size(); ++i) {
        if (!(logits[i] > last) || !allowed(mask, i)) continue;
        items_.push_back({static_cast<int32_t>(i), logits[i]});
        if (items_.size() < capacity) continue;
        const auto end = items_.begin() + static_cast<ptrdiff_t>(n);
        std::nth_element(items_.begin(), end - 1, items_.end(), comes_before);
        last = static_cast<float>(items_[n - 1].logit);
        items_.erase(end, items_.end());
    }
    check_filled(mask);
    sort_first(n);
    keep_first(n);
}

void Candidates::check_filled(std::span<const uint32_t> mask) const {
    if (!items_.empty()) return;
    throw InvalidArgument(mask.empty() ? "every logit is -inf"
                                       : "every token that the mask allows has a logit of -inf");
}

const Candidate& Candidates::best() const {
    if (n_sorted_ > 0) return items_.front();
    return *std::min_element(items_.begin(), items_.end(), comes_before);
}

Softmax Candidates::softmax() const {
    const double highest = best().logit;
    double total = 0;
    for (const Candidate& c : items_) total += std::exp(c.logit - highest);
    return {highest, std::log(total)};
}

double Candidates::entropy() const {
    const Softmax distribution = softmax();
    double sum = 0;
    for (const Candidate& c : items_) {
        const double log_p = distribution.log_p(c);
        const double p = std::exp(log_p);
        if (p > 0) sum -= p * log_p;
    }
    return sum;
}

std::span<const Candidate> Candidates::sort_first(size_t n) {
    n = std::min(n, items_.size());
    if (n > n_sorted_) {
        const auto begin = items_.begin() + static_cast<ptrdiff_t>(n_sorted_);
        const auto end = items_.begin() + static_cast<ptrdiff_t>(n);
        if (end != items_.end()) std::nth_element(begin, end - 1, items_.end(), comes_before);
        std::sort(begin, end, comes_before);
        n_sorted_ = n;
    }
    return std::span(items_).first(n);
}

void Candidates::keep_first(size_t n) {
    if (n < items_.size()) items_.resize(n);
    n_sorted_ = std::min(n_sorted_, n);
}

void Candidates::keep_only(int32_t token) {
    const auto found = std::find_if(items_.begin(), items_.end(),
                                    [&](const Candidate& c) { return c.token == token; });
    if (found == items_.end())
        throw InvalidArgument(
            text("token ", token, " is forced, but its logit is -inf or the mask excludes it"));
    items_ = {*found};
    n_sorted_ = 1;
}

void Candidates::keep(std::vector<Candidate> some) {
    std::sort(some.begin(), some.end(),
              [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
    items_ = std::move(some);
    n_sorted_ = 0;
}

void Candidates::check_not_empty(const char* stage) const {
    if (items_.empty()) throw InvalidArgument(text("no token is left after the stage ", stage));
}

void token_logprobs(std::span<const float> logits, std::span<const int32_t> tokens,
                    std::span<double> out) {
    const size_t n_vocab = tokens.empty() ? 0 : logits.size() / tokens.size();
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto row = logits.subspan(i * n_vocab, n_vocab);
        const float highest = *std::max_element(row.begin(), row.end());
        double total = 0;
        for (const float x : row) total += std::exp(static_cast<double>(x) - highest);
        if (!std::isfinite(highest) || !std::isfinite(total))
            throw InvalidArgument("logits contain NaN or +inf, or only -inf");
        out[i] =
            static_cast<double>(row[static_cast<size_t>(tokens[i])]) - highest - std::log(total);
    }
}

}  // namespace plait::sampling
