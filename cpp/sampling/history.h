// The state that a sampler keeps for each sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace plait::sampling {

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

}  // namespace plait::sampling
