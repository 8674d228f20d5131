#include "memory/compaction.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int32_t kNone = -1;
constexpr int64_t kShortRun = 32;  // keys: what kernels take in one step

size_t at(int32_t row) { return static_cast<size_t>(row); }

// Visits the rows of all sequences, sequence after sequence: visit(sequence, row, ordinal).
template <typename Visit>
void for_each_key(const RowTable& table, Visit visit) {
    for (SequenceId s = 0; s < table.n_sequences(); ++s)
        for (const Run& run : table.runs(s))
            for (int32_t i = 0; i < run.count; ++i) visit(s, run.row + i, run.ordinal + i);
}

// Every row that is taken, in the order above.
struct Order {
    explicit Order(const RowTable& table)
        : place(at(table.n_rows()), kNone),
          row_at(at(table.n_rows()), kNone),
          next(at(table.n_rows()), kNone),
          n_used(at(table.n_pools()), 0) {
        SequenceId sequence = kNone;
        int32_t before = kNone;
        for_each_key(table, [&](SequenceId s, int32_t row, int32_t) {
            if (s == sequence && next[at(before)] == kNone) next[at(before)] = row;
            sequence = s;
            before = row;
            if (place[at(row)] != kNone) return;
            const int32_t pool = table.pool_of(s);
            place[at(row)] = pool * table.rows_per_pool() + n_used[at(pool)]++;
            row_at[at(place[at(row)])] = row;
        });
    }

    std::vector<int32_t> place;   // [n_rows] of a row; kNone: free
    std::vector<int32_t> row_at;  // [n_rows] the row whose place this is
    std::vector<int32_t> next;    // [n_rows] that holds the key after a row's
    std::vector<int32_t> n_used;  // [n_pools]
};

int64_t count_runs(const RowTable& table, const std::vector<int32_t>& place) {
    int64_t n = 0;
    SequenceId sequence = kNone;
    int32_t place_before = kNone;
    int32_t ordinal_before = kNone;
    for_each_key(table, [&](SequenceId s, int32_t row, int32_t ordinal) {
        const bool goes_on =
            s == sequence && place[at(row)] == place_before + 1 && ordinal == ordinal_before + 1;
        n += goes_on ? 0 : 1;
        sequence = s;
        place_before = place[at(row)];
        ordinal_before = ordinal;
    });
    return n;
}

// One round. `held[r]` is the row whose contents are in r by now, and `now[r]` where r's are.
class Round {
public:
    Round(const RowTable& table, const Order& order, int64_t max_moves)
        : table_(table), order_(order), max_moves_(static_cast<size_t>(max_moves)) {
        held_.resize(at(table.n_rows()));
        for (int32_t row = 0; row < table.n_rows(); ++row)
            held_[at(row)] = order.place[at(row)] == kNone ? kNone : row;
        now_ = held_;
    }

    std::vector<RowMove> take() { return std::move(moves_); }

    // The rows past the end of what will be taken go into the holes before it; each, if it can,
    // next to the key that comes before it.
    bool fill_holes(int32_t pool) {
        const int32_t first = pool * table_.rows_per_pool();
        const int32_t end = first + order_.n_used[at(pool)];
        int32_t source = end;
        for (int32_t hole = first; hole < end; ++hole) {
            if (held_[at(hole)] != kNone) continue;
            while (source < first + table_.rows_per_pool() && held_[at(source)] != source) ++source;
            int32_t row = source;
            if (hole > first) {
                const int32_t next = order_.next[at(held_[at(hole - 1)])];
                if (next >= end && now_[at(next)] == next) row = next;
            }
            if (!move(row, hole)) return false;
        }
        return true;
    }

    // Every row goes to its place, block after block.
    bool put_in_order(int32_t pool) {
        const int32_t first = pool * table_.rows_per_pool();
        const int32_t end = first + order_.n_used[at(pool)];
        for (int32_t place = first; place < end;) {
            const int32_t row = order_.row_at[at(place)];
            if (now_[at(row)] == place) {
                ++place;
                continue;
            }
            if (moved(row)) return false;  // later
            int32_t n = 1;
            while (place + n < end && order_.row_at[at(place + n)] == row + n && !moved(row + n))
                ++n;
            const Clearing clearing = clear(place, n, row, first + table_.rows_per_pool());
            if (clearing.n == 0) return !clearing.later;
            for (int32_t i = 0; i < clearing.n; ++i)
                if (!move(row + i, place + i)) return false;
            place += clearing.n;
        }
        return true;
    }

private:
    struct Clearing {
        int32_t n = 0;       // places that are free now
        bool later = false;  // none, but another round can go on
    };

    bool moved(int32_t row) const { return now_[at(row)] != row; }

    // Makes as much of [place, place + n) free as rows past it allow, but for what moves from there
    // itself (rows from `source` on).
    Clearing clear(int32_t place, int32_t n, int32_t source, int32_t pool_end) {
        const int32_t possible = find_aside(place, n, source, pool_end);
        if (possible < n) n = find_aside(place, std::max(possible, 1), source, pool_end);
        for (size_t i = 0; i < in_the_way_.size() && in_the_way_[i] < place + n; ++i) {
            const int32_t r = in_the_way_[i];
            if (held_[at(r)] != r || !move(r, aside_[i])) return {.n = 0, .later = true};
        }
        return {.n = n};
    }

    // For each row in the way a free one past [place, place + n), the last ones, in order. Returns
    // how many places these are enough for.
    int32_t find_aside(int32_t place, int32_t n, int32_t source, int32_t pool_end) {
        in_the_way_.clear();
        for (int32_t r = place; r < std::min(source, place + n); ++r)
            if (held_[at(r)] != kNone) in_the_way_.push_back(r);
        aside_.clear();
        for (int32_t r = pool_end - 1; r >= place + n && aside_.size() < in_the_way_.size(); --r)
            if (held_[at(r)] == kNone) aside_.push_back(r);
        std::reverse(aside_.begin(), aside_.end());
        return aside_.size() < in_the_way_.size() ? in_the_way_[aside_.size()] - place : n;
    }

    // False: the round is full.
    bool move(int32_t row, int32_t to) {
        RowMove* last = moves_.empty() ? nullptr : &moves_.back();
        if (last != nullptr && last->from + last->n == row && last->to + last->n == to) {
            ++last->n;
        } else {
            if (moves_.size() == max_moves_) return false;
            moves_.push_back({.from = row, .to = to});
        }
        held_[at(to)] = row;
        held_[at(row)] = kNone;
        now_[at(row)] = to;
        return true;
    }

    const RowTable& table_;
    const Order& order_;
    size_t max_moves_;
    std::vector<int32_t> held_;
    std::vector<int32_t> now_;
    std::vector<int32_t> in_the_way_;
    std::vector<int32_t> aside_;
    std::vector<RowMove> moves_;
};

}  // namespace

int64_t fewest_runs(const RowTable& table) { return count_runs(table, Order(table).place); }

std::vector<RowMove> Compaction::plan(const RowTable& table, int64_t max_moves) {
    const Order order(table);
    if (version_ != table.version()) {
        version_ = table.version();
        int64_t n_keys = 0;
        for (SequenceId s = 0; s < table.n_sequences(); ++s) n_keys += table.n_keys(s);
        const int64_t n_runs = table.n_runs();
        put_in_order_ = n_runs >= 2 * count_runs(table, order.place) && n_keys < kShortRun * n_runs;
    }
    Round round(table, order, max_moves);
    for (int32_t pool = 0; pool < table.n_pools(); ++pool)
        if (!(put_in_order_ ? round.put_in_order(pool) : round.fill_holes(pool))) break;
    return round.take();
}

}  // namespace plait
