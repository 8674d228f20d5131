// Chooses the next tokens of any number of sequences from rows of logits.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "sampling/bias.h"
#include "sampling/candidates.h"
#include "sampling/dry.h"
#include "sampling/history.h"
#include "sampling/min_p.h"
#include "sampling/mirostat.h"
#include "sampling/penalties.h"
#include "sampling/temperature.h"
#include "sampling/top_k.h"
#include "sampling/top_n_sigma.h"
#include "sampling/top_p.h"
#include "sampling/typical.h"
#include "sampling/xtc.h"

namespace plait::sampling {

using Stage = std::variant<Bias, Penalties, Dry, TopNSigma, TopK, Typical, TopP, MinP, Xtc,
                           Temperature, Mirostat>;

// Rows of logits and, for each, the sequence that it belongs to and the tokens that it may choose.
struct Rows {
    std::span<const float> logits;    // [n, n_vocab]
    std::span<const uint64_t> keys;   // [n] sequences; whose numbers are up to the caller
    std::span<const uint32_t> masks;  // [n, ceil(n_vocab / 32)] bits of allowed tokens; empty: all
    size_t n_vocab = 0;

    size_t n() const { return keys.size(); }
    std::span<const float> row(size_t i) const { return logits.subspan(i * n_vocab, n_vocab); }
    std::span<const uint32_t> mask(size_t i) const {
        const size_t words = (n_vocab + 31) / 32;
        return masks.empty() ? masks : masks.subspan(i * words, words);
    }
};

// Every row passes the stages in order; the token is drawn from softmax(logits) of what is left.
// Calls from several threads take turns.
class Sampler {
public:
    // `forced`: the first tokens of every sequence.
    Sampler(std::vector<Stage> stages, std::vector<int32_t> forced, uint64_t seed);

    // Stages from `first` on, a draw for each row, and its token noted as the sequence's next. All or
    // nothing: where a row throws InvalidArgument, no sequence has changed. `tokens`: [n]
    void sample(const Rows& rows, size_t first, std::span<int32_t> tokens);

    // Stages [first, last) alone. `out`: [n, n_vocab] logits, -inf where a token has gone.
    void apply(const Rows& rows, size_t first, size_t last, std::span<float> out) const;

    // What sample() would draw from. `out`: [n, n_vocab]
    void probabilities(const Rows& rows, size_t first, std::span<double> out) const;

    // The sequence holds these tokens now, and nothing was drawn of it; its random numbers go on.
    void start(uint64_t key, std::span<const int32_t> tokens);
    // Tokens that somebody else chose.
    void accept(uint64_t key, std::span<const int32_t> tokens);
    void reset(uint64_t key);  // forgets all of it
    void reset();              // of every sequence

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
    void note(uint64_t key, Drawn drawn);

    const History& find(uint64_t key) const;  // an empty one where nothing is known

    const std::vector<Stage> stages_;
    const std::vector<int32_t> forced_;
    const uint64_t seed_;
    mutable std::mutex mutex_;  // guards histories_
    std::unordered_map<uint64_t, History> histories_;
};

}  // namespace plait::sampling
