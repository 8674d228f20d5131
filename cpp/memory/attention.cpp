#include "memory/attention.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

std::vector<uint8_t> find_rotated(const MemoryLayout& layout, const std::vector<uint8_t>& groups) {
    std::vector<uint8_t> rotated;
    for (const uint8_t group : groups)
        if (layout.rotates_keys(group)) rotated.push_back(group);
    return rotated;
}

}  // namespace

AttentionPart::AttentionPart(const MemoryLayout& layout, std::vector<uint8_t> groups,
                             const MemoryOptions& options)
    : Part(AttentionSpec::kind()),
      table_(static_cast<int32_t>(layout.groups[groups.at(0)].n_rows) /
                 (options.streams ? options.n_seq_max : 1),
             options.streams, options.n_seq_max, options.axes),
      groups_(std::move(groups)),
      rotated_groups_(find_rotated(layout, groups_)),
      window_(groups_.size() == 1 ? layout.groups[groups_[0]].window : Window{}),
      n_ctx_(options.n_ctx),
      causal_(options.causal),
      placement_(table_, options.n_ctx) {}

void AttentionPart::place(StepKind kind, const PreparedBatch& batch,
                          std::span<const Microbatch> microbatches) {
    if (kind == StepKind::decode) placement_.place(batch, microbatches);
}

GroupView AttentionPart::view(const GroupInfo& group, size_t microbatch) {
    return placement_.view(group, causal_, microbatch);
}

bool AttentionPart::can_remove(SequenceId sequence, PositionRange) {
    PLAIT_CHECK(!placement_.in_step());
    table_.reserve_release(sequence);
    return true;
}

void AttentionPart::remove(SequenceId sequence, PositionRange range) noexcept {
    table_.release(sequence, table_.keys(sequence, range));
}

size_t AttentionPart::check_copy(SequenceId from, SequenceId to, PositionRange range) {
    const KeyRange keys = table_.keys(from, range);
    const KeyRange replaced = table_.keys(to, range);
    const int64_t needed = keys.size();
    const int64_t free = n_ctx_ - table_.n_keys(to) + replaced.size();
    if (needed > free)
        throw CacheFull(text("copying sequence ", from, " to sequence ", to, " needs ", needed,
                             " cells, ", free, " of its n_ctx = ", n_ctx_, " are free"),
                        needed, free);
    return reserve_copy(from, keys, to, replaced);
}

size_t AttentionPart::reserve_fork(SequenceId from, SequenceId to) {
    if (table_.n_pools() == 1) {
        table_.reserve_share(from, to);
        return 0;
    }
    // A transaction may keep the rows of `to`; otherwise they suffice.
    const int32_t needed = table_.n_keys(from);
    const int32_t free = table_.rows_per_pool() - table_.n_kept(table_.pool_of(to));
    if (needed > free)
        throw CacheFull(text("copying sequence ", from, " to sequence ", to, " needs ", needed,
                             " cells, ", free, " in its stream are free"),
                        needed, free);
    table_.reserve_duplicate(needed, to);
    return reserve_moves(needed);
}

size_t AttentionPart::reserve_copy(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                                   int32_t n_dropped) {
    PLAIT_CHECK(!placement_.in_step());
    if (table_.n_pools() == 1) {
        table_.reserve_share(from, to);
        return 0;
    }
    const int32_t first = replaced.begin + n_dropped;
    const int64_t free = int64_t{table_.n_free(to)} + table_.n_freed(to, {0, n_dropped}) +
                         table_.n_freed(to, {first, first + replaced.size()});
    if (keys.size() > free)
        throw CacheFull(text("copying sequence ", from, " to sequence ", to, " needs ", keys.size(),
                             " cells, ", free, " in its stream are free"),
                        keys.size(), free);
    table_.reserve_duplicate(keys.size(), to);
    return reserve_moves(keys.size());
}

void AttentionPart::copy(SequenceId from, SequenceId to, PositionRange range,
                         std::vector<RowMove>& moves) noexcept {
    copy_keys(from, table_.keys(from, range), to, table_.keys(to, range), moves);
}

void AttentionPart::copy_keys(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                              std::vector<RowMove>& moves) noexcept {
    if (table_.n_pools() == 1) return table_.share(from, keys, to, replaced);
    table_.duplicate(from, keys, to, replaced, table_moves_);
    append_moves(moves);
}

size_t AttentionPart::check_reposition(SequenceId sequence, const Reposition& how) {
    PLAIT_CHECK(!placement_.in_step());
    const KeyRange keys = table_.keys(sequence, how.range);
    if (keys.size() == 0) return 0;
    const auto position = [&](int32_t key) {
        return table_.position(table_.row_of(sequence, key));
    };
    // The new positions are nondecreasing in the old ones, so checking both ends suffices.
    const int64_t first = how.unchecked(position(keys.begin));
    const int64_t last = how.unchecked(position(keys.end - 1));
    if (first < 0)
        throw InvalidArgument(text("position ", position(keys.begin), " of sequence ", sequence,
                                   " would become ", first, "; positions must not be negative"));
    if (last >= INT32_MAX)
        throw InvalidArgument(text("position ", position(keys.end - 1), " of sequence ", sequence,
                                   " would become ", last, ", expected at most ", INT32_MAX - 1));
    if (keys.begin > 0 && first < position(keys.begin - 1))
        throw InvalidArgument(
            text("position ", position(keys.begin), " of sequence ", sequence, " would become ",
                 first, ", before the previous token's position ", position(keys.begin - 1)));
    if (keys.end < table_.n_keys(sequence) && last > position(keys.end))
        throw InvalidArgument(text("position ", position(keys.end - 1), " of sequence ", sequence,
                                   " would become ", last, ", after the next token's position ",
                                   position(keys.end)));

    return reserve_unshare(sequence, table_.n_shared(sequence, keys), "shift");
}

// The rows of removed keys that no other sequence holds have room for copies.
size_t AttentionPart::check_discard(SequenceId sequence, PositionRange range) {
    PLAIT_CHECK(!placement_.in_step());
    const KeyRange removed = table_.keys(sequence, range);
    const KeyRange later{removed.end, table_.n_keys(sequence)};
    return reserve_unshare(sequence, table_.n_shared(sequence, later), "shift",
                           table_.n_freed(sequence, removed));
}

size_t AttentionPart::reserve_unshare(SequenceId sequence, int32_t needed, std::string_view what,
                                      int32_t n_freed) {
    const int32_t free = table_.n_free(sequence) + n_freed;
    if (needed > free)
        throw CacheFull(text("sequence ", sequence, " shares ", needed, " of the cells to ", what,
                             table_.in_transaction() ? " with others or with a transaction" : "",
                             ", which must be copied first; ", free, " cells are free"),
                        needed, free);
    table_.reserve_unshare(sequence, needed);
    return reserve_moves(needed);
}

size_t AttentionPart::check_own(SequenceId sequence, std::span<const int32_t> keys) {
    PLAIT_CHECK(!placement_.in_step());
    return reserve_unshare(sequence, table_.n_shared(sequence, keys), "write");
}

void AttentionPart::own(SequenceId sequence, std::span<int32_t> keys,
                        std::vector<RowMove>& moves) noexcept {
    table_.unshare(sequence, keys, table_moves_);
    append_moves(moves);
    for (int32_t& key : keys) key = table_.row_of(sequence, key);
}

void AttentionPart::reposition(SequenceId sequence, const Reposition& how,
                               std::vector<RowMove>& moves) noexcept {
    const KeyRange keys = table_.keys(sequence, how.range);
    if (keys.size() == 0) return;
    table_.unshare(sequence, keys, table_moves_);
    append_moves(moves);
    table_.reposition(sequence, keys, how.divisor, how.delta);
}

size_t AttentionPart::reserve_moves(int32_t rows) {
    table_moves_.reserve(static_cast<size_t>(rows));
    return static_cast<size_t>(rows) * groups_.size();
}

void AttentionPart::append_moves(std::vector<RowMove>& moves) noexcept {
    for (const uint8_t group : groups_) {
        for (RowMove move : table_moves_) {
            move.group = group;
            moves.push_back(move);
        }
    }
    table_moves_.clear();
}

size_t AttentionPart::n_shifts() const {
    return static_cast<size_t>(table_.n_shifted()) * rotated_groups_.size();
}

void AttentionPart::take_shifts(std::vector<KeyShift>& shifts) noexcept {
    if (!table_.has_shifts()) return;
    for (const uint8_t group : rotated_groups_)
        for (int32_t row = 0; row < table_.n_rows(); ++row)
            if (table_.applies_shift(row)) shifts.push_back({group, row, table_.shift(row)});
    table_.clear_shifts();
}

int64_t AttentionPart::defragment(int64_t max_moves, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!placement_.in_step());
    const std::vector<RowMove> round = compaction_.plan(table_, max_moves);
    moves.reserve(moves.size() + round.size() * groups_.size());
    table_moves_.reserve(round.size());
    table_.move_rows(round);
    table_moves_.assign(round.begin(), round.end());
    append_moves(moves);
    int64_t n = 0;
    for (const RowMove& move : round) n += move.n;
    return n;
}

RunCount AttentionPart::count_runs() const {
    RunCount count{.n_runs = table_.n_runs(), .min_runs = min_runs(table_)};
    for (SequenceId s = 0; s < table_.n_sequences(); ++s) count.n_keys += table_.n_keys(s);
    return count;
}

std::vector<Cell> AttentionPart::cells() const {
    std::vector<Cell> cells;
    cells.reserve(static_cast<size_t>(n_used()));
    std::vector<int32_t> cell_of(static_cast<size_t>(table_.n_rows()), -1);
    for (SequenceId s = 0; s < table_.n_sequences(); ++s) {
        for (const int32_t row : rows_of(s)) {
            int32_t& at = cell_of[static_cast<size_t>(row)];
            if (at < 0) {
                at = static_cast<int32_t>(cells.size());
                Cell cell{.row = row,
                          .stream = table_.pool_of(s),
                          .shift = table_.shift(row),
                          .ordinal = table_.ordinal(row)};
                const auto position = table_.positions(row);
                std::copy(position.begin(), position.end(), cell.position);
                cells.push_back(std::move(cell));
            }
            cells[static_cast<size_t>(at)].sequences.push_back(s);
        }
    }
    std::sort(cells.begin(), cells.end(),
              [](const Cell& a, const Cell& b) { return a.row < b.row; });
    return cells;
}

std::vector<int32_t> AttentionPart::rows_of(SequenceId sequence) const {
    std::vector<int32_t> rows;
    rows.reserve(static_cast<size_t>(table_.n_keys(sequence)));
    for (const Run& run : table_.runs(sequence))
        for (int32_t r = 0; r < run.count; ++r) rows.push_back(run.row + r);
    return rows;
}

std::vector<Position> AttentionPart::positions_of(SequenceId sequence) const {
    std::vector<Position> positions = rows_of(sequence);
    for (Position& row : positions) row = table_.position(row);
    return positions;
}

}  // namespace plait
