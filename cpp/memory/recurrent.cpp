#include "memory/recurrent.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout_builder.h"

namespace plait {
namespace {

int64_t recurrent_rows(const MemoryOptions& options) { return 3 * options.n_seq_max + 1; }

uint8_t add_recurrent_slot(LayoutBuilder& builder, StorageId id, const StateSpec& slot) {
    const auto spec = slot.get<RecurrentSpec>();
    PLAIT_CHECK(!spec.elements.empty());
    const uint8_t group = builder.find_group({
        .kind = &RecurrentSpec::kind(),
        .n_rows = saturate32(recurrent_rows(builder.options())),
    });
    for (const int64_t elements : spec.elements) {
        PLAIT_CHECK(elements >= 0 && elements <= INT_MAX);
        if (elements > 0) builder.add_storage(id, group, DType::f32, 1, static_cast<int>(elements));
        ++id.part;
    }
    return group;
}

std::string recurrent_storage_name(uint8_t part) { return text("recurrent state ", int{part}); }

void check_recurrent(const MemoryLayout& layout, const MemoryOptions& options) {
    if (!options.causal)
        throw UnsupportedError(
            "causal=False is not supported: a recurrent layer cannot see later tokens");
    if (layout.has(CrossSpec::kind()) || layout.has(WithinSpec::kind()))
        throw UnsupportedError(
            "recurrent layers of an encoder-decoder are not supported: an encoder step has no "
            "state");
}

void add_recurrent_parts(const MemoryLayout&, std::span<const uint8_t> groups,
                         const MemoryOptions& options, Parts& parts) {
    for (const uint8_t group : groups)
        parts.add(std::make_unique<RecurrentPart>(group, options), {{group}});
}

constinit const PartKind kRecurrent{
    .name = "recurrent",
    .code = 1,
    .holds_states = true,
    .memory_name = "recurrent",
    .memory_name_with_cells = "hybrid",
    .add_slot = add_recurrent_slot,
    .storage_name = recurrent_storage_name,
    .check = check_recurrent,
    .add_parts = add_recurrent_parts,
};

}  // namespace

const PartKind& RecurrentSpec::kind() { return kRecurrent; }

RecurrentPart::RecurrentPart(uint8_t group, const MemoryOptions& options)
    : Part(kRecurrent),
      group_(group),
      axes_(options.axes),
      rows_(1, 3 * options.n_seq_max),
      ref_counts_(static_cast<size_t>(recurrent_rows(options))),
      sequences_(static_cast<size_t>(options.n_seq_max)),
      last_copy_from_(ref_counts_.size()) {
    touched_.reserve(sequences_.size());
    stale_rows_.reserve(sequences_.size());
}

std::optional<PositionBounds> RecurrentPart::positions(SequenceId s) const {
    const Sequence& q = sequence(s);
    if (q.row == kZeroRow) return std::nullopt;
    return PositionBounds{q.positions.begin, q.positions.end - 1};
}

bool RecurrentPart::same_content(std::span<const SequenceId> ids) const {
    const Sequence& first = sequence(ids[0]);
    return std::ranges::all_of(ids, [&](SequenceId s) {
        const Sequence& q = sequence(s);
        return q.row == first.row && q.positions.end == first.positions.end;
    });
}

std::vector<Cell> RecurrentPart::cells() const {
    std::map<std::pair<int32_t, Position>, Cell> cells;
    for (SequenceId s = 0; s < std::ssize(sequences_); ++s) {
        const Sequence& q = sequence(s);
        if (q.row == kZeroRow) continue;
        Cell& cell = cells[{q.row, q.positions.end}];
        cell.row = q.row;
        std::fill_n(cell.position, axes_ == 1 ? 1 : 3, q.positions.end - 1);
        cell.sequences.push_back(s);
    }
    std::vector<Cell> list;
    for (auto& [key, cell] : cells) list.push_back(std::move(cell));
    return list;
}

int64_t RecurrentPart::n_used() const {
    std::set<std::pair<int32_t, Position>> used;
    const auto add = [&](const std::vector<Sequence>& sequences) {
        for (const Sequence& q : sequences)
            if (q.row != kZeroRow) used.emplace(q.row, q.positions.end);
    };
    add(sequences_);
    for (size_t i = 0; i < saved_.size(); ++i) add(saved_[i]);
    return std::min<int64_t>(std::ssize(used), n_cells());
}

std::vector<int32_t> RecurrentPart::rows_of(SequenceId s) const {
    if (sequence(s).row == kZeroRow) return {};
    return {sequence(s).row};
}

void RecurrentPart::add_reference(int32_t row) noexcept {
    if (row != kZeroRow) ++ref_count(row);
}

void RecurrentPart::drop_reference(int32_t row) noexcept {
    if (row != kZeroRow && --ref_count(row) == 0) rows_.give(row);
}

void RecurrentPart::place(StepKind kind, const PreparedBatch& batch,
                          std::span<const Microbatch> microbatches) {
    if (kind == StepKind::encode) return;
    PLAIT_CHECK(touched_.empty());
    size_t n = 0;
    for (const Microbatch& microbatch : microbatches) n += microbatch.sequences.size();
    first_.reserve(microbatches.size() + 1);
    reads_.reserve(n);
    writes_.reserve(n);
    // Nothing below allocates memory.
    first_.assign(1, 0);
    reads_.clear();
    writes_.clear();
    for (const SequenceId s : batch.touched) {
        Sequence& q = sequence(s);
        touched_.push_back(s);
        q.new_positions = {q.positions.begin, batch.next[static_cast<size_t>(s)]};
    }
    // An empty sequence begins at the position of its first entry.
    for (size_t i = batch.size(); i-- > 0;)
        for (const SequenceId s : batch.sequences_of(i))
            if (sequence(s).row == kZeroRow) sequence(s).new_positions.begin = batch.position(i);
    for (const Microbatch& microbatch : microbatches) {
        ++n_placed_;
        // With SplitPolicy::constant_coupling, all tokens of a sequence in a microbatch belong to
        // the same sequences, so the first token stands for all.
        for (const int32_t begin : std::span(microbatch.begin).first(microbatch.sequences.size()))
            if (!advance(batch.sequences_of(microbatch.entries[static_cast<size_t>(begin)]))) {
                drop_stale_rows();
                rollback();
                throw CacheFull(
                    text("the batch needs another recurrent state, but all ", rows_.n_rows(),
                         " are in use: transactions keep states of ", saved_.size(),
                         " points in time; end one, or use a larger ", "n_seq_max"),
                    1, 0);
            }
        drop_stale_rows();
        first_.push_back(reads_.size());
    }
}

void RecurrentPart::drop_stale_rows() noexcept {
    for (const int32_t row : stale_rows_) drop_reference(row);
    stale_rows_.clear();
}

// Chooses the row that a microbatch reads and the row that it writes for coupled sequences `ids`,
// which have the same state. A new row that no other sequence holds is updated in place. Otherwise
// the microbatch writes another row, since sequences of one microbatch are computed in any order: a
// row that one of them reads must not be written for another. Returns false, and changes nothing, if
// no row is free.
bool RecurrentPart::advance(std::span<const SequenceId> ids) noexcept {
    const Sequence& first = sequence(ids[0]);
    const int32_t before = first.new_row != kNone ? first.new_row : first.row;
    uint64_t& last_copy = last_copy_from_[static_cast<size_t>(before)];
    reads_.push_back(before);
    if (first.new_row != kNone && ref_count(before) == std::ssize(ids) && last_copy != n_placed_) {
        writes_.push_back(before);
        return true;
    }
    const int32_t row = rows_.take(kNone);
    if (row == RowPool::kNone) return false;
    last_copy = n_placed_;
    writes_.push_back(row);
    for (const SequenceId s : ids) {
        Sequence& q = sequence(s);
        if (q.new_row != kNone && ref_count(q.new_row) > 1) {
            --ref_count(q.new_row);
        } else if (q.new_row != kNone) {
            stale_rows_.push_back(q.new_row);
        }
        q.new_row = row;
        add_reference(row);
    }
    return true;
}

void RecurrentPart::commit() noexcept {
    for (const SequenceId s : touched_) {
        Sequence& q = sequence(s);
        drop_reference(q.row);
        q.row = q.new_row;
        q.positions = q.new_positions;
        q.new_row = kNone;
    }
    touched_.clear();
}

void RecurrentPart::rollback() noexcept {
    for (const SequenceId s : touched_) {
        Sequence& q = sequence(s);
        if (q.new_row != kNone) drop_reference(q.new_row);
        q.new_row = kNone;
    }
    touched_.clear();
}

GroupView RecurrentPart::view(const GroupInfo&, size_t microbatch) {
    PLAIT_CHECK(!touched_.empty() && microbatch + 1 < first_.size());
    const size_t begin = first_[microbatch];
    const size_t n = first_[microbatch + 1] - begin;
    return {.read_rows = std::span(reads_).subspan(begin, n),
            .write_rows = std::span(writes_).subspan(begin, n)};
}

RecurrentPart::Overlap RecurrentPart::overlap(SequenceId s, PositionRange range) const {
    const Sequence& q = sequence(s);
    const PositionRange own = q.positions;
    if (q.row == kZeroRow || range.end <= range.begin || range.end <= own.begin ||
        range.begin >= own.end)
        return Overlap::none;
    return range.begin <= own.begin && range.end >= own.end ? Overlap::whole : Overlap::part;
}

bool RecurrentPart::can_remove(SequenceId s, PositionRange range) {
    PLAIT_CHECK(touched_.empty());
    return overlap(s, range) != Overlap::part;
}

void RecurrentPart::remove(SequenceId s, PositionRange range) noexcept {
    if (overlap(s, range) == Overlap::whole) release(s);
}

size_t RecurrentPart::check_copy(SequenceId from, SequenceId to, PositionRange range) {
    PLAIT_CHECK(touched_.empty());
    const auto fail = [&](SequenceId s, std::string_view what) {
        const PositionRange own = sequence(s).positions;
        throw UnsupportedError(text("positions [", range.begin, ", ", range.end, ") of sequence ",
                                    s, " cannot be ", what, ": a recurrent state can only be ",
                                    what, " as a whole, here positions [", own.begin, ", ", own.end,
                                    ")"));
    };
    const Overlap copied = overlap(from, range);
    const Overlap replaced = overlap(to, range);
    const bool keeps_state = sequence(to).row != kZeroRow && replaced != Overlap::whole;
    if (copied == Overlap::part) fail(from, "copied");
    if (replaced == Overlap::part || (copied == Overlap::whole && keeps_state))
        fail(to, "replaced");
    return 0;
}

void RecurrentPart::copy(SequenceId from, SequenceId to, PositionRange range,
                         std::vector<RowMove>&) noexcept {
    if (overlap(to, range) == Overlap::whole) release(to);
    if (overlap(from, range) != Overlap::whole) return;
    add_reference(sequence(from).row);
    sequence(to) = sequence(from);
}

size_t RecurrentPart::check_reposition(SequenceId s, const Reposition& how) {
    PLAIT_CHECK(touched_.empty());
    const Sequence& q = sequence(s);
    if (q.row == kZeroRow) return 0;
    const int64_t begin = how.unchecked(q.positions.begin);
    const int64_t last = how.unchecked(q.positions.end - 1);
    if (begin < 0)
        throw InvalidArgument(text("position ", q.positions.begin, " of sequence ", s,
                                   " would become ", begin, "; positions must not be negative"));
    if (last < begin || last >= INT32_MAX)
        throw InvalidArgument(text("position ", q.positions.end - 1, " of sequence ", s,
                                   " would become ", last, ", expected ", begin, "..",
                                   INT32_MAX - 1));
    return 0;
}

void RecurrentPart::reposition(SequenceId s, const Reposition& how,
                               std::vector<RowMove>&) noexcept {
    Sequence& q = sequence(s);
    if (q.row != kZeroRow) q.positions = {how(q.positions.begin), how(q.positions.end - 1) + 1};
}

void RecurrentPart::release(SequenceId s) noexcept {
    drop_reference(sequence(s).row);
    sequence(s) = {};
}

void RecurrentPart::begin_transaction() {
    PLAIT_CHECK(touched_.empty());
    saved_.push(sequences_);
    for (const Sequence& q : sequences_) add_reference(q.row);
}

void RecurrentPart::commit_transaction() noexcept {
    for (const Sequence& q : saved_.top()) drop_reference(q.row);
    saved_.pop();
}

void RecurrentPart::roll_back_transaction() noexcept {
    for (const Sequence& q : sequences_) drop_reference(q.row);
    sequences_.swap(saved_.top());
    saved_.pop();
}

// Returns the number of rows that transactions keep.
int32_t RecurrentPart::n_kept() const {
    if (saved_.size() == 0) return 0;
    std::vector<bool> kept(ref_counts_.size());
    for (size_t i = 0; i < saved_.size(); ++i)
        for (const Sequence& q : saved_[i]) kept[static_cast<size_t>(q.row)] = true;
    kept[kZeroRow] = false;
    return static_cast<int32_t>(std::ranges::count(kept, true));
}

bool RecurrentPart::can_end_at(SequenceId s, Position next) const {
    const Sequence& q = sequence(s);
    return q.row == kZeroRow || next >= q.positions.end || next <= q.positions.begin;
}

PartState RecurrentPart::describe(std::span<const SequenceId> sequences,
                                  std::vector<StateRows>& rows) const {
    PLAIT_CHECK(touched_.empty());
    PartState state;
    StateRows& found = rows.emplace_back();
    found.group = group_;
    std::vector<int32_t> item_of(ref_counts_.size(), -1);
    for (const SequenceId s : sequences) {
        const Sequence& q = sequence(s);
        SequenceState& described = state.sequences.emplace_back();
        described.unstored = q.positions;
        if (q.row == kZeroRow) continue;
        int32_t& item = item_of[static_cast<size_t>(q.row)];
        if (item < 0) {
            item = state.n_items++;
            found.items.push_back(item);
            found.rows.push_back(q.row);
        }
        described.items.push_back(item);
    }
    return state;
}

void RecurrentPart::check_restore(const PartState& state, std::span<const SequenceId> sequences,
                                  bool whole, std::vector<StateRows>& rows) {
    PLAIT_CHECK(touched_.empty() && state.sequences.size() == sequences.size());
    if (state.axes != 0)
        throw StateError(text("the state has recurrent states with ", state.axes,
                              " positions each, expected 0"));
    int32_t n_known = 0;
    for (const SequenceState& sequence : state.sequences) {
        const PositionRange own = sequence.unstored;
        const size_t expected = own.begin < own.end ? 1 : 0;
        if (own.begin < 0 || own.end < own.begin || sequence.items.size() != expected)
            throw StateError(text("a sequence of the state has ", sequence.items.size(),
                                  " recurrent states for positions [", own.begin, ", ", own.end,
                                  "), expected ", expected));
        for (const int32_t item : sequence.items) {
            if (item < 0 || item > n_known)
                throw StateError(text("a sequence of the state lists recurrent state ", item,
                                      ", expected 0..", n_known));
            n_known += item == n_known ? 1 : 0;
        }
    }
    if (n_known != state.n_items)
        throw StateError(text("no sequence of the state lists recurrent state ", n_known));
    int32_t free = rows_.n_rows() - n_kept();
    if (!whole) {
        const int32_t row = sequence(sequences[0]).row;
        free = rows_.n_free() + (row != kZeroRow && ref_count(row) == 1 ? 1 : 0);
    }
    if (n_known > free)
        throw CacheFull(text("the state needs ", n_known, " recurrent states, ", free, " of ",
                             rows_.n_rows(), " are free"),
                        n_known, free);
    row_of_item_.assign(static_cast<size_t>(n_known), kNone);
    StateRows& found = rows.emplace_back();
    found.group = group_;
    found.items.reserve(static_cast<size_t>(n_known));
    found.rows.reserve(static_cast<size_t>(n_known));
}

void RecurrentPart::restore(const PartState& state, std::span<const SequenceId> sequences,
                            std::span<StateRows> rows) noexcept {
    for (size_t i = 0; i < sequences.size(); ++i) {
        for (const int32_t item : state.sequences[i].items) {
            int32_t& row = row_of_item_[static_cast<size_t>(item)];
            if (row == kNone) {
                row = rows_.take(kNone);
                rows[0].items.push_back(item);
                rows[0].rows.push_back(row);
            }
            add_reference(row);
            Sequence& q = sequence(sequences[i]);
            q.row = row;
            q.positions = state.sequences[i].unstored;
        }
    }
}

}  // namespace plait
