#include "memory/row_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace plait {
namespace {

constexpr size_t kSpatialAxes = 3;  // t, y, x; the fourth axis is not a position in space or time

// Reserves memory for `n` more elements; grows by doubling.
template <typename T>
void reserve_extra(std::vector<T>& values, size_t n) {
    if (values.capacity() - values.size() >= n) return;
    values.reserve(std::max(values.size() + n, 2 * values.capacity()));
}

}  // namespace

RowTable::RowTable(int32_t rows_per_pool, bool pool_per_sequence, int32_t n_sequences, int axes)
    : axes_(static_cast<size_t>(axes)), rows_per_pool_(rows_per_pool) {
    const int32_t n_pools = pool_per_sequence ? n_sequences : 1;
    const auto n_rows = static_cast<size_t>(n_pools) * static_cast<size_t>(rows_per_pool);
    pools_.reserve(static_cast<size_t>(n_pools));
    for (int32_t i = 0; i < n_pools; ++i) pools_.emplace_back(i * rows_per_pool, rows_per_pool);
    positions_.resize(n_rows * axes_);
    ordinals_.resize(n_rows);
    shifts_.resize(n_rows);
    shifted_.resize(n_rows);
    ref_counts_.resize(n_rows);
    sequences_.resize(static_cast<size_t>(n_sequences));
    touched_.reserve(static_cast<size_t>(n_sequences));
    for (Sequence& s : sequences_) s.runs.reserve(reserved_runs());
    scratch_.reserve(reserved_runs());
}

size_t RowTable::reserved_runs() const {
    constexpr size_t kTotal = 65536, kMin = 16, kMax = 1024;
    return std::min(std::clamp(kTotal / sequences_.size(), kMin, kMax),
                    static_cast<size_t>(rows_per_pool_));
}

int32_t RowTable::n_free() const {
    return std::accumulate(pools_.begin(), pools_.end(), 0,
                           [](int32_t n, const RowPool& p) { return n + p.n_free(); });
}

int32_t RowTable::row_of(SequenceId s, int32_t key) const {
    const auto& runs = sequence(s).runs;
    const Run& run = runs[run_of(runs, key)];
    return run.row + (key - run.first_key);
}

// Returns the number of keys of `s` whose rows satisfy the predicate. They must precede the others.
template <typename Predicate>
int32_t RowTable::partition_point(SequenceId s, Predicate predicate) const {
    const auto& runs = sequence(s).runs;
    const auto run = std::partition_point(
        runs.begin(), runs.end(), [&](const Run& r) { return predicate(r.row + r.count - 1); });
    if (run == runs.end()) return n_keys(s);
    int32_t begin = 0;
    int32_t end = run->count - 1;  // the last row of the run does not satisfy it
    while (begin < end) {
        const int32_t middle = begin + (end - begin) / 2;
        if (predicate(run->row + middle)) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return run->first_key + begin;
}

int32_t RowTable::first_key_from(SequenceId s, Position p) const {
    return partition_point(s, [&](int32_t row) { return position(row) < p; });
}

KeyRange RowTable::keys(SequenceId s, PositionRange range) const {
    if (range.whole()) return {0, n_keys(s)};
    const int32_t begin = first_key_from(s, range.begin);
    return {begin, std::max(begin, first_key_from(s, range.end))};
}

std::optional<PositionBounds> RowTable::bounds(SequenceId s) const {
    const Sequence& q = sequence(s);
    if (q.n_keys == 0) return std::nullopt;
    return PositionBounds{position(q.runs.front().row), q.max_position};
}

bool RowTable::same_content(std::span<const SequenceId> ids) const {
    const Sequence& first = sequence(ids[0]);
    return std::all_of(ids.begin() + 1, ids.end(),
                       [&](SequenceId s) { return sequence(s).runs == first.runs; });
}

// Takes a row for `s`, if possible the one after row `after`.
int32_t RowTable::take(SequenceId s, int32_t after) noexcept {
    const int32_t row = pool(s).take(after == RowPool::kNone ? RowPool::kNone : after + 1);
    if (row != RowPool::kNone && !born_.empty()) born_[at(row)] = serial_;
    return row;
}

int32_t RowTable::append(std::span<const SequenceId> ids, std::span<const Position> position) {
    for (const SequenceId s : ids) reserve_extra(sequence(s).runs, 1);  // nothing below can fail

    const Sequence& first = sequence(ids[0]);
    const int32_t last =
        first.n_keys == 0 ? RowPool::kNone : first.runs.back().row + first.runs.back().count - 1;
    const int32_t row = take(ids[0], last);
    PLAIT_CHECK(row != RowPool::kNone);
    ordinals_[at(row)] = last == RowPool::kNone ? 0 : ordinals_[at(last)] + 1;
    std::copy_n(position.begin(), axes_,
                positions_.begin() + static_cast<std::ptrdiff_t>(at(row) * axes_));
    for (const SequenceId s : ids) {
        Sequence& q = sequence(s);
        if (q.n_committed < 0) {
            q.n_committed = q.n_keys;
            touched_.push_back(s);
        }
        add_key(q, row);
    }
    return row;
}

void RowTable::add_key(Sequence& q, int32_t row) noexcept {
    const auto p = positions(row);
    const Position top = *std::max_element(
        p.begin(), p.begin() + static_cast<std::ptrdiff_t>(std::min(axes_, kSpatialAxes)));
    q.max_position = q.n_keys == 0 ? top : std::max(q.max_position, top);
    const Run next{row, 1, q.n_keys, ordinals_[at(row)]};
    append_run(q.runs, next);
    ++q.n_keys;
    add_reference(row);
}

void RowTable::commit() noexcept {
    for (const SequenceId s : touched_) sequence(s).n_committed = -1;
    touched_.clear();
}

void RowTable::rollback() noexcept {
    for (const SequenceId s : touched_) {
        truncate(s, sequence(s).n_committed);
        sequence(s).n_committed = -1;
    }
    touched_.clear();
}

void RowTable::add_to_scratch(const Run& run) {
    append_run(scratch_, {run.row, run.count, n_scratch_keys_, run.ordinal});
    n_scratch_keys_ += run.count;
}

void RowTable::add_to_scratch(const Sequence& from, KeyRange keys) {
    if (keys.size() == 0) return;
    for (size_t i = run_of(from.runs, keys.begin); i < from.runs.size(); ++i) {
        const Run& run = from.runs[i];
        if (run.first_key >= keys.end) return;
        const int32_t begin = std::max(0, keys.begin - run.first_key);
        const int32_t end = std::min(run.count, keys.end - run.first_key);
        add_to_scratch(slice(run, begin, end));
    }
}

// Takes a row for `to`, if possible the one after row `after`, and appends the move from `row` to
// it. Returns the new row.
int32_t RowTable::copy_row_to_scratch(int32_t row, SequenceId to, int32_t after,
                                      std::vector<RowMove>& moves) {
    const int32_t copy = take(to, after);
    add_reference(copy);
    copy_row(row, copy);
    add_to_scratch(Run{copy, 1, 0, ordinals_[at(copy)]});
    append_move(moves, row, copy);
    return copy;
}

// Copies what the table records of a row, but not its references.
void RowTable::copy_row(int32_t from, int32_t to) noexcept {
    std::copy_n(positions_.begin() + static_cast<std::ptrdiff_t>(at(from) * axes_), axes_,
                positions_.begin() + static_cast<std::ptrdiff_t>(at(to) * axes_));
    ordinals_[at(to)] = ordinals_[at(from)];
    set_shift(to, shifts_[at(from)], is_shifted(from));
}

void RowTable::set_runs_from_scratch(Sequence& q) noexcept {
    q.runs.swap(scratch_);
    q.n_keys = n_scratch_keys_;
    scratch_.clear();
    n_scratch_keys_ = 0;
    update_max_position(q);
}

void RowTable::drop_reference(int32_t row) noexcept {
    ++version_;
    if (--ref_counts_[at(row)] > 0) return;
    if (!is_kept(row)) return give(row);
    if (is_shifted(row)) --n_shifted_;
    keep_dropped(transactions_[depth_ - 1], row);
}

// Frees a row that no sequence holds.
void RowTable::give(int32_t row) noexcept {
    set_shift(row, 0, false);
    pools_[at(row / rows_per_pool_)].give(row);
}

void RowTable::truncate(SequenceId s, int32_t n_keys) noexcept {
    Sequence& q = sequence(s);
    for_each_row(q, {n_keys, q.n_keys}, [this](int32_t row) { drop_reference(row); });
    cut_runs(q.runs, n_keys);
    q.n_keys = n_keys;
    update_max_position(q);
}

void RowTable::release_all(SequenceId s) noexcept {
    SavedSequence* const saved = unsaved(s);
    if (saved == nullptr) return truncate(s, 0);
    Sequence& q = sequence(s);
    for_each_row(q, {0, q.n_keys}, [this](int32_t row) { drop_reference(row); });
    // Without allocating: the saved runs are those of the sequence itself.
    saved->runs.swap(q.runs);
    cut_runs(saved->runs, saved->n_keys);
    saved->has_runs = true;
    q.runs.clear();
    q.n_keys = 0;
    q.max_position = 0;
}

void RowTable::update_max_position(Sequence& q) noexcept {
    q.max_position = 0;
    if (q.n_keys == 0) return;
    if (axes_ == 1) {
        q.max_position = position(q.runs.back().row + q.runs.back().count - 1);
        return;
    }
    for_each_row(q, {0, q.n_keys}, [&](int32_t row) {
        const auto p = positions(row);
        for (size_t a = 0; a < std::min(axes_, kSpatialAxes); ++a)
            q.max_position = std::max(q.max_position, p[a]);
    });
}

void RowTable::reserve_release(SequenceId s) {
    reserve_extra(scratch_, sequence(s).runs.size() + 1);
    save(s);
}

void RowTable::release(SequenceId s, KeyRange keys) noexcept {
    Sequence& q = sequence(s);
    if (keys.size() == 0) return;
    if (keys.end == q.n_keys) return truncate(s, keys.begin);
    add_to_scratch(q, {0, keys.begin});
    add_to_scratch(q, {keys.end, q.n_keys});
    for_each_row(q, keys, [this](int32_t row) { drop_reference(row); });
    set_runs_from_scratch(q);
}

// Works in place, since windows free keys after every step.
void RowTable::release_front(SequenceId s, int32_t n_keys) noexcept {
    Sequence& q = sequence(s);
    if (n_keys == 0) return;
    for_each_row(q, {0, n_keys}, [this](int32_t row) { drop_reference(row); });
    const auto remains = [&](const Run& run) { return run.first_key + run.count > n_keys; };
    q.runs.erase(q.runs.begin(), std::find_if(q.runs.begin(), q.runs.end(), remains));
    if (!q.runs.empty() && q.runs.front().first_key < n_keys) {
        Run& first = q.runs.front();
        first = slice(first, n_keys - first.first_key, first.count);
    }
    for (Run& run : q.runs) run.first_key -= n_keys;
    q.n_keys -= n_keys;
    // With one axis, the last key has the largest position, and it is still there.
    if (axes_ > 1 || q.n_keys == 0) update_max_position(q);
}

void RowTable::reserve_share(SequenceId from, SequenceId to) {
    reserve_extra(scratch_, sequence(from).runs.size() + sequence(to).runs.size() + 1);
    save(to);
}

void RowTable::share(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced) noexcept {
    const Sequence& source = sequence(from);
    Sequence& q = sequence(to);
    add_to_scratch(q, {0, replaced.begin});
    add_to_scratch(source, keys);
    add_to_scratch(q, {replaced.end, q.n_keys});
    for_each_row(source, keys, [this](int32_t row) { add_reference(row); });
    for_each_row(q, replaced, [this](int32_t row) { drop_reference(row); });
    set_runs_from_scratch(q);
}

void RowTable::reserve_duplicate(int32_t n_keys, SequenceId to) {
    reserve_extra(scratch_, sequence(to).runs.size() + 1 + static_cast<size_t>(n_keys));
    save(to);
}

void RowTable::duplicate(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                         std::vector<RowMove>& moves) noexcept {
    Sequence& q = sequence(to);
    add_to_scratch(q, {0, replaced.begin});
    for_each_row(q, replaced, [this](int32_t row) { drop_reference(row); });
    int32_t after = replaced.begin == 0 ? RowPool::kNone : row_of(to, replaced.begin - 1);
    for_each_row(sequence(from), keys,
                 [&](int32_t row) { after = copy_row_to_scratch(row, to, after, moves); });
    add_to_scratch(q, {replaced.end, q.n_keys});
    set_runs_from_scratch(q);
}

int32_t RowTable::n_shared(SequenceId s, KeyRange keys) const {
    int32_t n = 0;
    for_each_row(sequence(s), keys, [&](int32_t row) { n += is_shared(row) ? 1 : 0; });
    return n;
}

int32_t RowTable::n_shared(SequenceId s, std::span<const int32_t> keys) const {
    return static_cast<int32_t>(
        std::ranges::count_if(keys, [&](int32_t key) { return is_shared(row_of(s, key)); }));
}

void RowTable::reserve_unshare(SequenceId s, int32_t n_shared) {
    const size_t n_added = 2 * static_cast<size_t>(n_shared) + 2;
    reserve_extra(scratch_, sequence(s).runs.size() + n_added);
    reserve_extra(sequence(s).runs, n_added);  // release() makes it the scratch list
    save(s);
}

// Replaces the shared rows among the keys of `range` for which wanted(key) is true.
template <typename Wanted>
void RowTable::unshare_if(SequenceId s, KeyRange range, std::vector<RowMove>& moves,
                          Wanted wanted) noexcept {
    Sequence& q = sequence(s);
    add_to_scratch(q, {0, range.begin});
    int32_t after = range.begin == 0 ? RowPool::kNone : row_of(s, range.begin - 1);
    int32_t key = range.begin;
    for_each_row(q, range, [&](int32_t row) {
        if (wanted(key++) && is_shared(row)) {
            after = copy_row_to_scratch(row, s, after, moves);
            drop_reference(row);
        } else {
            add_to_scratch(Run{row, 1, 0, ordinals_[at(row)]});
            after = row;
        }
    });
    add_to_scratch(q, {range.end, q.n_keys});
    set_runs_from_scratch(q);
}

void RowTable::unshare(SequenceId s, KeyRange keys, std::vector<RowMove>& moves) noexcept {
    if (n_shared(s, keys) > 0) unshare_if(s, keys, moves, [](int32_t) { return true; });
}

void RowTable::unshare(SequenceId s, std::span<const int32_t> keys,
                       std::vector<RowMove>& moves) noexcept {
    if (n_shared(s, keys) == 0) return;
    size_t next = 0;
    unshare_if(s, {keys.front(), keys.back() + 1}, moves, [&](int32_t key) {
        const bool listed = keys[next] == key;
        next += listed ? 1 : 0;
        return listed;
    });
}

void RowTable::swap(SequenceId a, SequenceId b) noexcept { std::swap(sequence(a), sequence(b)); }

void RowTable::reserve_keys(SequenceId s, int32_t n_keys) {
    sequence(s).runs.reserve(static_cast<size_t>(n_keys));
    save(s);  // release_all() then leaves that memory in place
}

int32_t RowTable::restore_key(SequenceId s, std::span<const Position> position,
                              int32_t ordinal) noexcept {
    Sequence& q = sequence(s);
    const int32_t row =
        take(s, q.n_keys == 0 ? RowPool::kNone : q.runs.back().row + q.runs.back().count - 1);
    ordinals_[at(row)] = ordinal;
    std::copy_n(position.begin(), axes_,
                positions_.begin() + static_cast<std::ptrdiff_t>(at(row) * axes_));
    add_key(q, row);
    return row;
}

void RowTable::restore_shared_key(SequenceId s, int32_t row) noexcept { add_key(sequence(s), row); }

void RowTable::move_rows(std::span<const RowMove> moves) {
    PLAIT_CHECK(!in_transaction() || moves.empty());
    // Allocates everything before anything changes.
    std::vector<int32_t> moved(ref_counts_.size());
    std::iota(moved.begin(), moved.end(), 0);
    for (const RowMove& move : moves)
        for (int32_t i = 0; i < move.n; ++i) moved[at(move.from + i)] = move.to + i;
    std::vector<std::vector<Run>> runs(sequences_.size());
    for (size_t s = 0; s < sequences_.size(); ++s) {
        int32_t key = 0;
        for_each_row(sequences_[s], {0, sequences_[s].n_keys}, [&](int32_t row) {
            append_run(runs[s], {moved[at(row)], 1, key++, ordinals_[at(row)]});
        });
    }
    for (size_t s = 0; s < sequences_.size(); ++s) sequences_[s].runs.swap(runs[s]);
    for (const RowMove& move : moves)
        for (int32_t i = 0; i < move.n; ++i) move_row(move.from + i, move.to + i);
}

void RowTable::move_row(int32_t from, int32_t to) noexcept {
    copy_row(from, to);
    set_shift(from, 0, false);
    ref_counts_[at(to)] = std::exchange(ref_counts_[at(from)], 0);
    pools_[at(from / rows_per_pool_)].give(from);
    pools_[at(to / rows_per_pool_)].take(to);
}

int64_t RowTable::n_runs() const {
    return std::accumulate(sequences_.begin(), sequences_.end(), int64_t{0},
                           [](int64_t n, const Sequence& q) { return n + std::ssize(q.runs); });
}

void RowTable::reposition(SequenceId s, KeyRange keys, int32_t divisor, int32_t delta) noexcept {
    Sequence& q = sequence(s);
    for_each_row(q, keys, [&](int32_t row) {
        Position& p = positions_[at(row)];  // tokens with several axes cannot be shifted
        const Position moved = p / divisor + delta;
        const int32_t shift = shifts_[at(row)] + (moved - p);
        set_shift(row, shift, shift != 0);
        p = moved;
    });
    update_max_position(q);
}

void RowTable::set_shift(int32_t row, int32_t shift, bool shifted) noexcept {
    n_shifted_ += (shifted ? 1 : 0) - (is_shifted(row) ? 1 : 0);
    shifts_[at(row)] = shift;
    shifted_[at(row)] = shifted ? 1 : 0;
}

void RowTable::clear_shifts() noexcept {
    for (int32_t row = 0; row < n_rows(); ++row)
        if (applies_shift(row)) set_shift(row, 0, false);
}

}  // namespace plait
