#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace plait::sampling {

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
