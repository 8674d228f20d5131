// Natural logarithms of the probabilities of chosen tokens, from unmodified logits.
#pragma once

#include <cstdint>
#include <span>

namespace plait::sampling {

// log p = x - m - log sum exp(x - m), m = max x. `logits` [n, n_vocab], `tokens` and `out` [n].
// Throws InvalidArgument if a row contains NaN or +inf, or only -inf.
void token_logprobs(std::span<const float> logits, std::span<const int32_t> tokens,
                    std::span<double> out);

}  // namespace plait::sampling
