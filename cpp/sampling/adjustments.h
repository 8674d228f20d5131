// Sampling stages that change logits.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "sampling/candidates.h"

namespace plait::sampling {

// Adds numbers to the logits of chosen tokens and restricts the choice to allowed tokens.
struct Bias {
    std::unordered_map<int32_t, double> added;  // -inf removes the token
    std::unordered_set<int32_t> allowed;        // empty: every token

    void apply(Candidates& candidates) const;
};

// Makes tokens of the history less likely.
//
// Repetition: positive logits are divided by the penalty, the others multiplied by it. Keskar et
// al. 2019, "CTRL", arXiv:1909.05858, equation 3, as implemented by transformers and llama.cpp.
// Frequency and presence: logit - count * frequency - (count > 0) * presence; OpenAI API reference.
struct Penalties {
    double repetition = 1;
    double presence = 0;
    double frequency = 0;
    int64_t last_n = -1;  // number of recent tokens to consider; -1: all

    void apply(Candidates& candidates, const History& history) const;
};

// "Don't repeat yourself" (DRY): subtracts multiplier * base^(n - allowed_length) from the logit of
// a token that would extend a repetition, where n >= allowed_length is the length of the longest
// suffix of the history that also occurs earlier, followed by that token. A repetition neither
// extends across a breaker nor continues with one.
// p-e-w 2024, https://github.com/oobabooga/text-generation-webui/pull/5677
struct Dry {
    double multiplier = 0;
    double base = 1.75;
    int64_t allowed_length = 2;
    int64_t last_n = -1;  // number of recent tokens to consider; -1: all
    std::unordered_set<int32_t> breakers;

    void apply(Candidates& candidates, const History& history) const;
};

// Divides logits by the temperature. Temperature 0 keeps only the best token.
//
// With range > 0 the temperature is dynamic:
//   low + (high - low) * (H / log n)^exponent      low, high = max(0, value - range), value + range
// where H is the entropy of the n remaining tokens: low where the model is certain.
// kalomaze 2023, https://github.com/ggml-org/llama.cpp/pull/4972
struct Temperature {
    double value = 1;
    double range = 0;
    double exponent = 1;

    void apply(Candidates& candidates) const;

private:
    double effective(const Candidates& candidates) const;
};

}  // namespace plait::sampling
