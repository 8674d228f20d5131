// What a sampler remembers of a sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace plait::sampling {

struct History {
    std::vector<int32_t> tokens;        // the prompt, as far as it was told, and what was drawn
    uint64_t step = 0;                  // draws so far, those before start() included
    uint64_t n_drawn = 0;               // draws since start()
    std::optional<double> mirostat_mu;  // none before the first draw
};

// The last n of them; n < 0: all.
inline std::span<const int32_t> last_tokens(const History& history, int64_t n) {
    const std::span<const int32_t> all(history.tokens);
    return n < 0 || static_cast<uint64_t>(n) >= all.size() ? all : all.last(static_cast<size_t>(n));
}

}  // namespace plait::sampling
