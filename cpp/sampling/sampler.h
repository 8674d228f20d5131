// Chooses the next tokens of any number of sequences from rows of logits.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "sampling/adjustments.h"
#include "sampling/candidates.h"
#include "sampling/truncation.h"

namespace plait::sampling {

using Stage = std::variant<Bias, Penalties, Dry, TopNSigma, TopK, Typical, TopP, MinP, Xtc,
                           Temperature, Mirostat>;

// Rows of logits, each with its sequence and the tokens that may be drawn.
struct Rows {
    std::span<const float> logits;    // [n, n_vocab]
    std::span<const uint64_t> keys;   // [n] sequence of each row, any number chosen by the caller
    std::span<const uint32_t> masks;  // [n, ceil(n_vocab / 32)] bits of allowed tokens; empty: all
    size_t n_vocab = 0;

    size_t n() const { return keys.size(); }
    std::span<const float> row(size_t i) const { return logits.subspan(i * n_vocab, n_vocab); }
    std::span<const uint32_t> mask(size_t i) const {
        const size_t words = (n_vocab + 31) / 32;
        return masks.empty() ? masks : masks.subspan(i * words, words);
    }
};

// Applies the stages in order to each row and draws a token from the softmax of the remaining
// logits. Thread-safe: calls are serialised.
class Sampler {
public:
    // `forced`: the first tokens of every sequence, drawn with probability 1.
    Sampler(std::vector<Stage> stages, std::vector<int32_t> forced, uint64_t seed);

    // Applies the stages from `first` on, draws a token for each row and appends it to the
    // sequence's history. If a row throws InvalidArgument, no history has changed. `tokens`: [n]
    void sample(const Rows& rows, size_t first, std::span<int32_t> tokens);

    // Applies the stages [first, last). `out`: [n, n_vocab] logits, -inf for removed tokens.
    void apply(const Rows& rows, size_t first, size_t last, std::span<float> out) const;

    // The distribution from which sample() draws. `out`: [n, n_vocab]
    void probabilities(const Rows& rows, size_t first, std::span<double> out) const;

    // Replaces the sequence's tokens and resets its draws and mirostat state. Its random numbers
    // continue.
    void start(uint64_t key, std::span<const int32_t> tokens);
    // Appends tokens that were not drawn by this sampler.
    void accept(uint64_t key, std::span<const int32_t> tokens);
    void reset(uint64_t key);  // erases the sequence's history
    void reset();              // erases every history

    History history(uint64_t key) const;
    size_t n_stages() const { return stages_.size(); }

private:
    struct Drawn {
        int32_t token;
        double probability;
    };

    void run(Candidates& candidates, const Rows& rows, size_t row, const History& history,
             size_t first, size_t last) const;
    std::optional<int32_t> forced(const History& history) const;
    Drawn draw(const Candidates& candidates, const History& history, uint64_t key) const;
    void record(uint64_t key, Drawn drawn);

    const History& find(uint64_t key) const;  // an empty history for an unknown sequence

    const std::vector<Stage> stages_;
    const std::vector<int32_t> forced_;
    const uint64_t seed_;
    mutable std::mutex mutex_;  // guards histories_
    std::unordered_map<uint64_t, History> histories_;
};

}  // namespace plait::sampling
