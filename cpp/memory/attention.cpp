#include "memory/attention.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace plait {
namespace {

std::string_view kind_of(const MemoryLayout& layout, const MemoryOptions& options) {
    const bool any_window =
        std::any_of(layout.groups.begin(), layout.groups.end(),
                    [](const GroupInfo& group) { return group.window.kind != WindowKind::full; });
    return any_window ? "sliding" : options.streams ? "streams" : "unified";
}

std::vector<uint8_t> find_rotated_groups(const MemoryLayout& layout) {
    std::set<uint8_t> groups;
    for (const StorageInfo& storage : layout.storage) {
        const StateSpec& spec = layout.specs[storage.id.layer][storage.id.slot];
        if (std::get<AttentionSpec>(spec).shifts) groups.insert(storage.group);
    }
    return {groups.begin(), groups.end()};
}

bool any_shift_magnifies(const MemoryLayout& layout) {
    for (const StorageInfo& storage : layout.storage) {
        const auto& spec = std::get<AttentionSpec>(layout.specs[storage.id.layer][storage.id.slot]);
        if (spec.shifts && spec.shifts_magnify) return true;
    }
    return false;
}

}  // namespace

AttentionMemory::AttentionMemory(MemoryLayout layout, const MemoryOptions& options)
    : layout_(std::move(layout)),
      options_(options),
      kind_(kind_of(layout_, options)),
      rotated_groups_(find_rotated_groups(layout_)),
      shifts_magnify_(any_shift_magnifies(layout_)),
      table_(static_cast<int32_t>(options.streams ? options.n_ctx : options.n_cells.value()),
             options.streams, options.n_seq_max, options.axes),
      step_(table_, options.n_ctx) {}

std::optional<PositionBounds> AttentionMemory::positions(SequenceId sequence) const {
    return table_.bounds(sequence);
}

bool AttentionMemory::same_content(std::span<const SequenceId> sequences) const {
    return table_.same_content(sequences);
}

void AttentionMemory::place(const PreparedBatch& batch, std::span<const Piece> pieces) {
    step_.place(batch, pieces);
}

AttentionView AttentionMemory::attention(uint8_t group, size_t piece) {
    PLAIT_CHECK(group < layout_.groups.size());
    return step_.view(layout_.groups[group], options_.causal, piece);
}

RecurrentView AttentionMemory::recurrent(uint8_t, size_t) {
    throw InternalError("this memory has no recurrent group");
}

bool AttentionMemory::remove(SequenceId sequence, PositionRange range) {
    PLAIT_CHECK(!step_.under_way());
    table_.release(sequence, table_.keys(sequence, range));
    return true;
}

void AttentionMemory::copy(SequenceId from, SequenceId to, PositionRange range,
                           std::vector<RowMove>& moves) {
    PLAIT_CHECK(!step_.under_way());
    if (from == to) return;
    const KeyRange keys = table_.keys(from, range);
    const KeyRange replaced = table_.keys(to, range);
    const int64_t needed = keys.size();
    const int64_t free = options_.n_ctx - table_.n_keys(to) + replaced.size();
    if (needed > free)
        throw CacheFull(text("copying ", needed, " cells of sequence ", from, " to sequence ", to,
                             ", of whose n_ctx = ", options_.n_ctx, " only ", free, " are free"),
                        needed, free);
    if (!options_.streams) return table_.share(from, keys, to, replaced);
    reserve_moves(moves, keys.size());
    table_.duplicate(from, keys, to, replaced, table_moves_);
    hand_over_moves(moves);
}

void AttentionMemory::keep(SequenceId sequence) {
    PLAIT_CHECK(!step_.under_way());
    for (SequenceId s = 0; s < table_.n_sequences(); ++s)
        if (s != sequence) table_.release_all(s);
}

void AttentionMemory::add(SequenceId sequence, PositionRange range, int32_t delta,
                          std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("positions with several axes cannot be shifted");
    if (delta != 0) reposition(sequence, range, 1, delta, moves);
}

void AttentionMemory::divide(SequenceId sequence, PositionRange range, int32_t divisor,
                             std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("positions with several axes cannot be divided");
    if (divisor < 1)
        throw InvalidArgument(text("the divisor is ", divisor, ", expected 1 or more"));
    if (divisor != 1) reposition(sequence, range, divisor, 0, moves);
}

void AttentionMemory::reposition(SequenceId sequence, PositionRange range, int32_t divisor,
                                 int32_t delta, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!step_.under_way());
    const KeyRange keys = table_.keys(sequence, range);
    if (keys.size() == 0) return;
    const auto position = [&](int32_t key) {
        return table_.position(table_.row_of(sequence, key));
    };
    // The new positions rise with the old ones, so the two ends tell whether the order stays.
    const int64_t first = int64_t{position(keys.begin)} / divisor + delta;
    const int64_t last = int64_t{position(keys.end - 1)} / divisor + delta;
    if (first < 0)
        throw InvalidArgument(text("position ", position(keys.begin), " of sequence ", sequence,
                                   " would become ", first));
    if (last >= INT32_MAX)
        throw InvalidArgument(text("position ", position(keys.end - 1), " of sequence ", sequence,
                                   " would become ", last, ", the largest is ", INT32_MAX - 1));
    if (keys.begin > 0 && first < position(keys.begin - 1))
        throw InvalidArgument(text("position ", position(keys.begin), " of sequence ", sequence,
                                   " would become ", first, ", before position ",
                                   position(keys.begin - 1), " that precedes it"));
    if (keys.end < table_.n_keys(sequence) && last > position(keys.end))
        throw InvalidArgument(text("position ", position(keys.end - 1), " of sequence ", sequence,
                                   " would become ", last, ", after position ", position(keys.end),
                                   " that follows it"));

    const int32_t needed = table_.n_shared(sequence, keys);
    const int32_t free = table_.n_free(sequence);
    if (needed > free)
        throw CacheFull(text("sequence ", sequence, " shares ", needed, " of the cells to shift; ",
                             "copies of them are needed, and ", free, " cells are free"),
                        needed, free);
    reserve_moves(moves, needed);
    table_.make_own(sequence, keys, table_moves_);
    hand_over_moves(moves);
    if (shifts_magnify_ && std::ranges::find(shifted_, sequence) == shifted_.end())
        shifted_.push_back(sequence);
    table_.reposition(sequence, keys, divisor, delta);
}

// Room for an edit's moves of every group, so that handing them over cannot fail.
void AttentionMemory::reserve_moves(std::vector<RowMove>& moves, int32_t rows) const {
    moves.reserve(moves.size() + static_cast<size_t>(rows) * layout_.groups.size());
}

void AttentionMemory::hand_over_moves(std::vector<RowMove>& moves) noexcept {
    for (size_t group = 0; group < layout_.groups.size(); ++group) {
        for (RowMove move : table_moves_) {
            move.group = static_cast<uint8_t>(group);
            moves.push_back(move);
        }
    }
    table_moves_.clear();
}

void AttentionMemory::clear() {
    PLAIT_CHECK(!step_.under_way());
    for (SequenceId s = 0; s < table_.n_sequences(); ++s) table_.release_all(s);
}

void AttentionMemory::take_shifts(std::vector<KeyShift>& shifts) {
    PLAIT_CHECK(!step_.under_way());
    if (!table_.has_shifts()) return;
    shifts.reserve(shifts.size() +
                   static_cast<size_t>(table_.n_shifted()) * rotated_groups_.size());
    for (const uint8_t group : rotated_groups_)
        for (int32_t row = 0; row < table_.n_rows(); ++row)
            if (table_.shift(row) != 0) shifts.push_back({group, row, table_.shift(row)});
    for (const SequenceId sequence : shifted_)
        for (const uint8_t group : rotated_groups_)
            for (const int32_t row : rows_of(group, sequence))
                if (table_.shift(row) == 0 && !table_.is_shared(row))
                    shifts.push_back({group, row, 0});
    shifted_.clear();
    table_.clear_shifts();
}

std::vector<Cell> AttentionMemory::cells() const {
    std::vector<Cell> cells;
    cells.reserve(static_cast<size_t>(n_used()));
    std::vector<int32_t> cell_of(static_cast<size_t>(table_.n_rows()), -1);
    for (SequenceId s = 0; s < table_.n_sequences(); ++s) {
        for (const int32_t row : rows_of(0, s)) {
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

std::vector<int32_t> AttentionMemory::rows_of(uint8_t, SequenceId sequence) const {
    std::vector<int32_t> rows;
    rows.reserve(static_cast<size_t>(table_.n_keys(sequence)));
    for (const Run& run : table_.runs(sequence))
        for (int32_t r = 0; r < run.count; ++r) rows.push_back(run.row + r);
    return rows;
}

}  // namespace plait
