// Natural logarithms of the probabilities of chosen tokens, as the model gave them.
#pragma once

#include <cstdint>
#include <span>

namespace plait::sampling {

// log p = x - m - log sum exp(x - m), m = max x. `logits` [n, n_vocab], `tokens` and `out` [n].
// InvalidArgument for NaN, +inf and rows of -inf alone.
void token_logprobs(std::span<const float> logits, std::span<const int32_t> tokens,
                    std::span<double> out);

}  // namespace plait::sampling
