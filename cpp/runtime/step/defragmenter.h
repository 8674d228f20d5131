// Moving rows together again. It makes attention faster, never a batch fit: what rows hold stays the
// same, to the bit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/memory.h"
#include "runtime/step/row_mover.h"

namespace plait {

struct DefragReport {
    int64_t cells = 0;    // that were moved
    int64_t n_moves = 0;  // that `max_moves` bounds in each round
    int64_t rounds = 0;
    uint64_t bytes = 0;  // copied, on the device
    double seconds = 0;
    bool automatic = false;
    std::vector<RowMove> moves;  // in order, for each group
};

// The share of its steps that attention takes only because runs are short: 0 where they have 32 keys
// or more, which is what a step takes, towards 1 where every key is a run. 0 also for less than 256
// keys, wherever they are.
double fragmentation(const RunCount& count);

class Defragmenter {
public:
    // Above `threshold` rows are moved without being asked; nothing: never.
    explicit Defragmenter(std::optional<double> threshold) : threshold_(threshold) {}

    // Rounds of at most `max_moves` until nothing is left to do.
    const DefragReport& run(Memory& memory, RowMover& mover, int64_t max_moves);
    // Before a step that places `n_tokens`: looks now and then, and runs where it is time.
    void before_step(Memory& memory, RowMover& mover, size_t n_tokens);

    const std::optional<DefragReport>& last() const { return last_; }

private:
    static constexpr int64_t kCheckInterval = 256;  // tokens, at least

    std::optional<double> threshold_;
    int64_t tokens_until_check_ = kCheckInterval;
    std::optional<DefragReport> last_;
};

}  // namespace plait
