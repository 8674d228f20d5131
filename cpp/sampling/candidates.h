// The tokens that may still be drawn, with their logits: what a sampling method narrows or changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace plait::sampling {

struct Candidate {
    int32_t token;
    double logit;
};

// Probabilities of candidates: p = exp(logit - highest) / sum. The highest is taken off first, beside
// which the logarithm of a sum may be nothing.
struct Softmax {
    double highest;
    double log_sum;  // log sum exp(logit - highest)

    double log_p(const Candidate& c) const { return (c.logit - highest) - log_sum; }
};

// The higher logit comes first, of equals the lower id.
inline bool comes_before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Never empty once filled: a method that would remove the last candidate throws InvalidArgument.
class Candidates {
public:
    static constexpr double kMost = 1e300;

    // Those of `logits` [n_vocab] above -inf that the bits of `mask` [ceil(n_vocab / 32)], where there
    // is one, allow. InvalidArgument for NaN, +inf, and where nothing is left.
    void fill(std::span<const float> logits, std::span<const uint32_t> mask);
    // The best n of them alone, in order: what fill() and sort_first() would find, in one look at the row.
    void fill_best(std::span<const float> logits, std::span<const uint32_t> mask, size_t n);

    std::span<const Candidate> items() const { return items_; }
    size_t size() const { return items_.size(); }
    const Candidate& best() const;  // that comes before all others
    Softmax softmax() const;

    // Puts the best n in front, in order; what stands behind them is in no particular order.
    std::span<const Candidate> sort_first(size_t n);

    void keep_first(size_t n);               // of what sort_first() put in order
    void keep_only(int32_t token);           // InvalidArgument where it is not among them
    void keep(std::vector<Candidate> some);  // these of them, in order of their ids
    template <typename Keep>
    void keep_if(const char* method, Keep keep) {
        std::erase_if(items_, [&](const Candidate& c) { return !keep(c); });
        n_sorted_ = 0;
        check_left(method);
    }

    // Every logit becomes change(candidate), and stays a number: what overflows ends at +-kMost.
    template <typename Change>
    void change_logits(Change change) {
        for (Candidate& c : items_) {
            const double x = change(c);
            c.logit = x > -kMost ? (x < kMost ? x : kMost) : -kMost;  // NaN too is unlikely
        }
        n_sorted_ = 0;
    }

private:
    void check_filled(std::span<const uint32_t> mask) const;
    void check_left(const char* method) const;

    std::vector<Candidate> items_;
    size_t n_sorted_ = 0;  // the first so many are the best, in order
};

}  // namespace plait::sampling
