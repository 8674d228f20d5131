#include "graph/plan_key.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"

namespace plait {

size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
    const auto flags =
        static_cast<uint64_t>(key.kind) | static_cast<uint64_t>(key.input) << 8 |
        static_cast<uint64_t>(key.output) << 16 | static_cast<uint64_t>(key.causal) << 24 |
        static_cast<uint64_t>(key.flash) << 25 | static_cast<uint64_t>(key.single) << 26 |
        static_cast<uint64_t>(key.control) << 27 | static_cast<uint64_t>(key.ordered) << 28 |
        static_cast<uint64_t>(key.group) << 32 | static_cast<uint64_t>(key.edits) << 40;
    return Hash()
        .add(flags)
        .add(static_cast<uint64_t>(key.adapters) << 32 | key.captures)
        .add(static_cast<uint64_t>(key.n_tokens) << 32 | key.n_sequences)
        .add(static_cast<uint64_t>(key.n_outputs) << 32 | key.n_moves)
        .value();
}

uint32_t bucket(uint32_t count, uint32_t max) {
    if (count == 0) return 0;
    return count >= max ? max : std::min(std::bit_ceil(count), max);
}

}  // namespace plait
