// The data that sampling stages work on: the candidates, of which stages remove some or change
// their logits, and the history of the sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace plait::sampling {

struct Candidate {
    int32_t token;
    double logit;
};

// Probabilities of candidates: log p = (logit - highest) - log_sum. The subtractions are separate
// because highest + log_sum can round to highest.
struct Softmax {
    double highest;
    double log_sum;  // log sum exp(logit - highest)

    double log_p(const Candidate& c) const { return (c.logit - highest) - log_sum; }
};

// The order of candidates: by descending logit, then by ascending token id.
inline bool comes_before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Never empty once filled: a stage that would remove the last candidate throws InvalidArgument.
class Candidates {
public:
    static constexpr double kMaxLogit = 1e300;

    // Takes the tokens whose logit is above -inf and whose bit in the mask is set. Throws
    // InvalidArgument if a logit is NaN or +inf, or if no token remains. `logits`: [n_vocab];
    // `mask`: [ceil(n_vocab / 32)] bits, or empty for no restriction.
    void fill(std::span<const float> logits, std::span<const uint32_t> mask);
    // Equivalent to fill(), sort_first(n) and keep_first(n), in one pass over the row.
    void fill_best(std::span<const float> logits, std::span<const uint32_t> mask, size_t n);

    std::span<const Candidate> items() const { return items_; }
    size_t size() const { return items_.size(); }
    const Candidate& best() const;
    Softmax softmax() const;
    double entropy() const;  // -sum p log p, in nats

    // Moves the best n to the front, in order; the others follow in no particular order.
    std::span<const Candidate> sort_first(size_t n);

    void keep_first(size_t n);               // the first n of the order made by sort_first()
    void keep_only(int32_t token);           // throws InvalidArgument if it is not a candidate
    void keep(std::vector<Candidate> some);  // a subset of the candidates
    template <typename Keep>
    void keep_if(const char* stage, Keep keep) {
        std::erase_if(items_, [&](const Candidate& c) { return !keep(c); });
        n_sorted_ = 0;
        check_not_empty(stage);
    }

    // Replaces each logit by change(candidate), clamped to +-kMaxLogit; NaN becomes -kMaxLogit.
    template <typename Change>
    void change_logits(Change change) {
        for (Candidate& c : items_) {
            const double x = change(c);
            c.logit = x > -kMaxLogit ? (x < kMaxLogit ? x : kMaxLogit) : -kMaxLogit;
        }
        n_sorted_ = 0;
    }

private:
    void check_filled(std::span<const uint32_t> mask) const;
    void check_not_empty(const char* stage) const;

    std::vector<Candidate> items_;
    size_t n_sorted_ = 0;  // length of the sorted prefix, which holds the best candidates
};

// The state that a sampler keeps for each sequence.
struct History {
    std::vector<int32_t> tokens;        // tokens from start() and accept(), and drawn tokens
    uint64_t step = 0;                  // number of draws, including those before start()
    uint64_t n_drawn = 0;               // number of draws since start()
    std::optional<double> mirostat_mu;  // empty before the first draw
};

// The last n tokens; all if n < 0 or n exceeds their number.
inline std::span<const int32_t> last_tokens(const History& history, int64_t n) {
    const std::span<const int32_t> all(history.tokens);
    return n < 0 || static_cast<uint64_t>(n) >= all.size() ? all : all.last(static_cast<size_t>(n));
}

// Writes the natural logarithm of the probability of tokens[i] in row i of `logits` to out[i]:
//   log p = x - m - log sum exp(x - m), m = max x
// `logits`: [n, n_vocab]; `tokens`, `out`: [n]. Throws InvalidArgument if a row contains NaN or
// +inf, or only -inf.
void token_logprobs(std::span<const float> logits, std::span<const int32_t> tokens,
                    std::span<double> out);

}  // namespace plait::sampling
