// Lists of runs, which are consecutive rows with consecutive tokens, and of moves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/part.h"

namespace plait {

// Returns true if the two runs can be merged.
inline bool continues(const Run& run, const Run& next) {
    return next.row == run.row + run.count && next.ordinal == run.ordinal + run.count;
}

inline Run slice(const Run& run, int32_t begin, int32_t end) {
    return {run.row + begin, end - begin, run.first_key + begin, run.ordinal + begin};
}

// Appends a run, merged with the last one if possible.
inline void append_run(std::vector<Run>& runs, const Run& run) {
    if (!runs.empty() && continues(runs.back(), run)) {
        runs.back().count += run.count;
    } else {
        runs.push_back(run);
    }
}

// Removes the keys from index `n_keys` on.
inline void cut_runs(std::vector<Run>& runs, int32_t n_keys) noexcept {
    while (!runs.empty() && runs.back().first_key >= n_keys) runs.pop_back();
    if (!runs.empty())
        runs.back().count = std::min(runs.back().count, n_keys - runs.back().first_key);
}

// Returns the index of the run that contains a key.
inline size_t run_of(std::span<const Run> runs, int32_t key) {
    const auto after = std::upper_bound(
        runs.begin(), runs.end(), key, [](int32_t k, const Run& run) { return k < run.first_key; });
    return static_cast<size_t>(after - runs.begin()) - 1;
}

// Calls visit(row) for each row of the keys [begin, end), in order.
template <typename Visit>
void for_each_row(std::span<const Run> runs, int32_t first, int32_t last, Visit visit) {
    if (first >= last) return;
    for (size_t i = run_of(runs, first); i < runs.size(); ++i) {
        const Run& run = runs[i];
        if (run.first_key >= last) return;
        const int32_t begin = std::max(0, first - run.first_key);
        const int32_t end = std::min(run.count, last - run.first_key);
        for (int32_t r = begin; r < end; ++r) visit(run.row + r);
    }
}

// Appends the move of one row, merged with the last move if possible.
inline void append_move(std::vector<RowMove>& moves, int32_t from, int32_t to) {
    if (!moves.empty()) {
        RowMove& last = moves.back();
        if (last.from + last.n == from && last.to + last.n == to) {
            ++last.n;
            return;
        }
    }
    moves.push_back({0, from, to, 1});
}

}  // namespace plait
