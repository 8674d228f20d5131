#include "memory/compaction.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int32_t kNone = -1;
constexpr int64_t kShortRun = 32;  // keys, as many as attention kernels process per block

size_t at(int32_t row) { return static_cast<size_t>(row); }

// Calls visit(sequence, row, ordinal) for each key of each sequence, in order.
template <typename Visit>
void for_each_key(const RowTable& table, Visit visit) {
    for (SequenceId s = 0; s < table.n_sequences(); ++s)
        for (const Run& run : table.runs(s))
            for (int32_t i = 0; i < run.count; ++i) visit(s, run.row + i, run.ordinal + i);
}

// The used rows sorted by sequence and key. A row that several sequences share belongs to the
// first.
struct TargetOrder {
    explicit TargetOrder(const RowTable& table)
        : target(at(table.n_rows()), kNone),
          row_for(at(table.n_rows()), kNone),
          next(at(table.n_rows()), kNone),
          n_used(at(table.n_pools()), 0) {
        SequenceId sequence = kNone;
        int32_t before = kNone;
        for_each_key(table, [&](SequenceId s, int32_t row, int32_t) {
            if (s == sequence && next[at(before)] == kNone) next[at(before)] = row;
            sequence = s;
            before = row;
            if (target[at(row)] != kNone) return;
            const int32_t pool = table.pool_of(s);
            target[at(row)] = pool * table.rows_per_pool() + n_used[at(pool)]++;
            row_for[at(target[at(row)])] = row;
        });
    }

    std::vector<int32_t> target;   // [n_rows] row number after sorting; kNone: the row is free
    std::vector<int32_t> row_for;  // [n_rows] inverse of `target`
    std::vector<int32_t> next;     // [n_rows] row of the key that follows; kNone: none
    std::vector<int32_t> n_used;   // [n_pools] used rows
};

// Counts the runs of all sequences if each row were moved to its target.
int64_t count_runs(const RowTable& table, const std::vector<int32_t>& target) {
    int64_t n = 0;
    SequenceId sequence = kNone;
    int32_t last_target = kNone;
    int32_t last_ordinal = kNone;
    for_each_key(table, [&](SequenceId s, int32_t row, int32_t ordinal) {
        const bool continues =
            s == sequence && target[at(row)] == last_target + 1 && ordinal == last_ordinal + 1;
        n += continues ? 0 : 1;
        sequence = s;
        last_target = target[at(row)];
        last_ordinal = ordinal;
    });
    return n;
}

// Plans the moves of one round.
class RoundPlanner {
public:
    RoundPlanner(const RowTable& table, const TargetOrder& order, int64_t max_moves)
        : table_(table), order_(order), max_moves_(static_cast<size_t>(max_moves)) {
        content_.resize(at(table.n_rows()));
        for (int32_t row = 0; row < table.n_rows(); ++row)
            content_[at(row)] = order.target[at(row)] == kNone ? kNone : row;
        location_ = content_;
    }

    std::vector<RowMove> take() { return std::move(moves_); }

    // Moves the used rows at the end of the pool into the free rows before them. If possible, a
    // free row receives the key that follows the key in the row before it. Returns false if the
    // round is full.
    bool fill_holes(int32_t pool) {
        const int32_t first = pool * table_.rows_per_pool();
        const int32_t end = first + order_.n_used[at(pool)];
        int32_t source = end;
        for (int32_t hole = first; hole < end; ++hole) {
            if (content_[at(hole)] != kNone) continue;
            while (source < first + table_.rows_per_pool() && content_[at(source)] != source)
                ++source;
            int32_t row = source;
            if (hole > first) {
                const int32_t next = order_.next[at(content_[at(hole - 1)])];
                if (next >= end && location_[at(next)] == next) row = next;
            }
            if (!move(row, hole)) return false;
        }
        return true;
    }

    // Moves every row to its target, one block of consecutive rows after another. Returns false if
    // the round is full or the next move must wait for another round.
    bool sort_rows(int32_t pool) {
        const int32_t first = pool * table_.rows_per_pool();
        const int32_t end = first + order_.n_used[at(pool)];
        for (int32_t target = first; target < end;) {
            const int32_t row = order_.row_for[at(target)];
            if (location_[at(row)] == target) {
                ++target;
                continue;
            }
            if (moved(row)) return false;  // no row moves twice in a round
            int32_t n = 1;
            while (target + n < end && order_.row_for[at(target + n)] == row + n && !moved(row + n))
                ++n;
            const ClearResult cleared = clear(target, n, row, first + table_.rows_per_pool());
            if (cleared.n == 0) return !cleared.later;
            for (int32_t i = 0; i < cleared.n; ++i)
                if (!move(row + i, target + i)) return false;
            target += cleared.n;
        }
        return true;
    }

private:
    struct ClearResult {
        int32_t n = 0;       // rows that are free now
        bool later = false;  // if n is 0: another round can clear rows
    };

    bool moved(int32_t row) const { return location_[at(row)] != row; }

    // Frees rows [target, target + n), or fewer from the beginning if there are too few free rows
    // behind them, by moving the rows that occupy them. Rows from `source` on stay, since they move
    // to the cleared rows themselves.
    ClearResult clear(int32_t target, int32_t n, int32_t source, int32_t pool_end) {
        const int32_t possible = find_free_rows(target, n, source, pool_end);
        if (possible < n) n = find_free_rows(target, std::max(possible, 1), source, pool_end);
        for (size_t i = 0; i < blockers_.size() && blockers_[i] < target + n; ++i) {
            const int32_t r = blockers_[i];
            if (content_[at(r)] != r || !move(r, free_rows_[i])) return {.n = 0, .later = true};
        }
        return {.n = n};
    }

    // Lists the used rows in [target, target + n) before `source` in blockers_, and the last free
    // rows behind the range, as many or fewer, in free_rows_. Returns the number of rows of the
    // range that these free rows suffice to clear.
    int32_t find_free_rows(int32_t target, int32_t n, int32_t source, int32_t pool_end) {
        blockers_.clear();
        for (int32_t r = target; r < std::min(source, target + n); ++r)
            if (content_[at(r)] != kNone) blockers_.push_back(r);
        free_rows_.clear();
        for (int32_t r = pool_end - 1; r >= target + n && free_rows_.size() < blockers_.size(); --r)
            if (content_[at(r)] == kNone) free_rows_.push_back(r);
        std::reverse(free_rows_.begin(), free_rows_.end());
        return free_rows_.size() < blockers_.size() ? blockers_[free_rows_.size()] - target : n;
    }

    // Adds a move, merged with the previous one if possible. Returns false if the round is full.
    bool move(int32_t row, int32_t to) {
        RowMove* last = moves_.empty() ? nullptr : &moves_.back();
        if (last != nullptr && last->from + last->n == row && last->to + last->n == to) {
            ++last->n;
        } else {
            if (moves_.size() == max_moves_) return false;
            moves_.push_back({.from = row, .to = to});
        }
        content_[at(to)] = row;
        content_[at(row)] = kNone;
        location_[at(row)] = to;
        return true;
    }

    const RowTable& table_;
    const TargetOrder& order_;
    size_t max_moves_;
    std::vector<int32_t> content_;   // [n_rows] row whose contents are there after moves_
    std::vector<int32_t> location_;  // [n_rows] inverse of content_; kNone: the row was free
    std::vector<int32_t> blockers_;
    std::vector<int32_t> free_rows_;
    std::vector<RowMove> moves_;
};

}  // namespace

int64_t min_runs(const RowTable& table) { return count_runs(table, TargetOrder(table).target); }

std::vector<RowMove> Compaction::plan(const RowTable& table, int64_t max_moves) {
    const TargetOrder order(table);
    if (version_ != table.version()) {
        version_ = table.version();
        int64_t n_keys = 0;
        for (SequenceId s = 0; s < table.n_sequences(); ++s) n_keys += table.n_keys(s);
        const int64_t n_runs = table.n_runs();
        sorts_ = n_runs >= 2 * count_runs(table, order.target) && n_keys < kShortRun * n_runs;
    }
    RoundPlanner round(table, order, max_moves);
    for (int32_t pool = 0; pool < table.n_pools(); ++pool)
        if (!(sorts_ ? round.sort_rows(pool) : round.fill_holes(pool))) break;
    return round.take();
}

}  // namespace plait
