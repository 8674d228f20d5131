#include "runtime/step/defragmenter.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/text.h"
#include "runtime/devices/place_layers.h"
#include "runtime/step/row_mover.h"

namespace plait {
namespace {

constexpr int64_t kMinKeys = 256;
constexpr int64_t kKeysPerStep = 32;

}  // namespace

double fragmentation(const RunCount& count) {
    if (count.n_keys < kMinKeys) return 0;
    const auto steps = [&](int64_t n_runs) {
        return static_cast<double>(std::max(count.n_keys / kKeysPerStep, n_runs));
    };
    return 1 - steps(count.min_runs) / steps(count.n_runs);
}

const DefragReport& Defragmenter::run(Memory& memory, RowMover& mover, int64_t max_moves) {
    mover.prepare();
    const auto start = std::chrono::steady_clock::now();
    DefragReport report;
    std::vector<RowMove> round;
    while (const int64_t n = memory.defragment(max_moves, round)) {
        mover.copy(round);
        report.cells += n;
        ++report.rounds;
        // Each group has the same moves, so the moves of one group are counted.
        report.n_moves += std::ranges::count(round, round[0].group, &RowMove::group);
        for (const RowMove& move : round)
            report.bytes += static_cast<uint64_t>(move.n) * mover.row_bytes(move.group);
        report.moves.insert(report.moves.end(), round.begin(), round.end());
        round.clear();
    }
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (log_enabled(LogLevel::trace))
        log(LogLevel::trace, text("defrag: ", report.cells, " cells in ", report.n_moves,
                                  " moves and ", report.rounds, " rounds"));
    return last_.emplace(std::move(report));
}

void Defragmenter::before_step(Memory& memory, RowMover& mover, size_t n_tokens) {
    if (!threshold_ || memory.n_transactions() > 0) return;
    tokens_until_check_ -= static_cast<int64_t>(n_tokens);
    if (tokens_until_check_ > 0) return;
    const RunCount count = memory.count_runs();
    // A check visits every row and a run copies every key, so the interval grows with both.
    tokens_until_check_ = std::max({kCheckInterval, memory.n_cells() / 16, count.n_keys / 8});
    if (fragmentation(count) <= *threshold_) return;
    run(memory, mover, kMaxMovesPerRun);
    last_->automatic = true;
}

}  // namespace plait
