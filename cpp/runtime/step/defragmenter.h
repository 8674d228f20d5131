// Defragmentation: moves the cache rows of a sequence next to each other. It makes attention faster
// and frees no rows. Cell contents and outputs do not change.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/memory.h"

namespace plait {

class RowMover;

struct DefragReport {
    int64_t cells = 0;    // cells moved
    int64_t n_moves = 0;  // contiguous copies; each round makes at most `max_moves`
    int64_t rounds = 0;
    uint64_t bytes = 0;  // bytes copied on the device
    double seconds = 0;
    bool automatic = false;      // started by a step rather than by the caller
    std::vector<RowMove> moves;  // in the order of execution, for each group
};

// Returns the share of attention's inner steps that short runs cause, from 0 to 1. A step handles
// up to 32 contiguous keys: 0 if all runs have at least 32 keys, close to 1 if every key is its own
// run. Returns 0 for fewer than 256 keys.
double fragmentation(const RunCount& count);

class Defragmenter {
public:
    // Fragmentation above `threshold` starts an automatic run; nullopt disables automatic runs.
    explicit Defragmenter(std::optional<double> threshold) : threshold_(threshold) {}

    // Defragments completely, in rounds of at most `max_moves` copies.
    const DefragReport& run(Memory& memory, RowMover& mover, int64_t max_moves);
    // Call before a step that places `n_tokens`. Checks fragmentation periodically, and runs if it
    // is above the threshold.
    void before_step(Memory& memory, RowMover& mover, size_t n_tokens);

    const std::optional<DefragReport>& last() const { return last_; }

private:
    static constexpr int64_t kCheckInterval = 256;  // min tokens between checks

    std::optional<double> threshold_;
    int64_t tokens_until_check_ = kCheckInterval;
    std::optional<DefragReport> last_;
};

}  // namespace plait
