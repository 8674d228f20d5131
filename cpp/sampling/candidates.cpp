#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace plait::sampling {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

void check_finite(std::span<const float> logits) {
    bool rises = false;
    for (const float x : logits) {
        if (std::isnan(x)) throw InvalidArgument("logits hold NaN");
        rises = rises || x == -kForbidden;
    }
    if (rises) throw InvalidArgument("logits hold +inf");
}

bool allowed(std::span<const uint32_t> mask, size_t token) {
    return mask.empty() || (mask[token / 32] >> (token % 32) & 1) != 0;
}

}  // namespace

void Candidates::fill(std::span<const float> logits, std::span<const uint32_t> mask) {
    check_finite(logits);
    items_.clear();
    n_sorted_ = 0;
    bool any = false;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] == kForbidden) continue;
        any = true;
        if (allowed(mask, i)) items_.push_back({static_cast<int32_t>(i), logits[i]});
    }
    if (!any) throw InvalidArgument("logits hold nothing but -inf");
    if (items_.empty())
        throw InvalidArgument(
            "no token is left: every one that the mask allows has the logit -inf");
}

const Candidate& Candidates::best() const {
    if (n_sorted_ > 0) return items_.front();
    return *std::min_element(items_.begin(), items_.end(), comes_before);
}

double Candidates::log_total() const {
    const double highest = best().logit;
    double total = 0;
    for (const Candidate& c : items_) total += std::exp(c.logit - highest);
    return highest + std::log(total);
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
        throw InvalidArgument(text("token ", token, " is forced, but its logit is -inf"));
    items_ = {*found};
    n_sorted_ = 1;
}

void Candidates::check_left(const char* method) const {
    if (items_.empty()) throw InvalidArgument(text("no token is left after ", method));
}

}  // namespace plait::sampling
