#include "memory/recurrent.h"

#include <algorithm>
#include <climits>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "memory/layout_builder.h"

namespace plait {
namespace {

int64_t recurrent_rows(const MemoryOptions& options) { return 2 * options.n_seq_max + 1; }

uint8_t add_slot(LayoutBuilder& builder, StorageId id, const StateSpec& slot) {
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

std::string storage_name(uint8_t part) { return text("recurrent state ", int{part}); }

void check(const MemoryLayout& layout, const MemoryOptions& options) {
    if (!options.causal)
        throw UnsupportedError(
            "causal=False: a recurrent layer sees only the tokens before its own");
    if (layout.has(CrossSpec::kind()) || layout.has(WithinSpec::kind()))
        throw UnsupportedError(
            "recurrent layers of an encoder-decoder are not supported: an encoder step has no "
            "state");
}

void add_parts(const MemoryLayout&, std::span<const uint8_t> groups, const MemoryOptions& options,
               Parts& parts) {
    for (const uint8_t group : groups)
        parts.add(std::make_unique<RecurrentPart>(group, options), {{group}});
}

constinit const PartKind kRecurrent{
    .name = "recurrent",
    .code = 1,
    .holds_states = true,
    .memory_name = "recurrent",
    .memory_name_with_cells = "hybrid",
    .add_slot = add_slot,
    .storage_name = storage_name,
    .check = check,
    .add_parts = add_parts,
};

}  // namespace

const PartKind& RecurrentSpec::kind() { return kRecurrent; }

RecurrentPart::RecurrentPart(uint8_t group, const MemoryOptions& options)
    : Part(kRecurrent),
      group_(group),
      axes_(options.axes),
      rows_(1, 2 * options.n_seq_max),
      holders_(static_cast<size_t>(recurrent_rows(options))),
      sequences_(static_cast<size_t>(options.n_seq_max)),
      parted_(holders_.size()) {
    touched_.reserve(sequences_.size());
    outdated_.reserve(sequences_.size());
}

std::optional<PositionBounds> RecurrentPart::positions(SequenceId s) const {
    const Sequence& q = sequence(s);
    if (q.row == kZeroRow) return std::nullopt;
    return PositionBounds{q.past.begin, q.past.end - 1};
}

bool RecurrentPart::same_content(std::span<const SequenceId> ids) const {
    const Sequence& first = sequence(ids[0]);
    return std::ranges::all_of(ids, [&](SequenceId s) {
        const Sequence& q = sequence(s);
        return q.row == first.row && q.past.end == first.past.end;
    });
}

std::vector<Cell> RecurrentPart::cells() const {
    std::map<std::pair<int32_t, Position>, Cell> cells;
    for (SequenceId s = 0; s < std::ssize(sequences_); ++s) {
        const Sequence& q = sequence(s);
        if (q.row == kZeroRow) continue;
        Cell& cell = cells[{q.row, q.past.end}];
        cell.row = q.row;
        std::fill_n(cell.position, axes_ == 1 ? 1 : 3, q.past.end - 1);
        cell.sequences.push_back(s);
    }
    std::vector<Cell> list;
    for (auto& [key, cell] : cells) list.push_back(std::move(cell));
    return list;
}

std::vector<int32_t> RecurrentPart::rows_of(SequenceId s) const {
    if (sequence(s).row == kZeroRow) return {};
    return {sequence(s).row};
}

void RecurrentPart::hold(int32_t row) noexcept {
    if (row != kZeroRow) ++holders(row);
}

void RecurrentPart::drop(int32_t row) noexcept {
    if (row != kZeroRow && --holders(row) == 0) rows_.give(row);
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
    // Nothing below needs memory.
    first_.assign(1, 0);
    reads_.clear();
    writes_.clear();
    for (const SequenceId s : batch.touched) {
        Sequence& q = sequence(s);
        touched_.push_back(s);
        q.begin = q.past.begin;
        q.end = batch.next[static_cast<size_t>(s)];
    }
    for (size_t i = batch.size(); i-- > 0;)
        for (const SequenceId s : batch.sequences_of(i))
            if (sequence(s).row == kZeroRow) sequence(s).begin = batch.position(i);
    for (const Microbatch& microbatch : microbatches) {
        ++n_placed_;
        // All tokens that a sequence has in a microbatch go to the same sequences: steady company.
        for (const int32_t begin : std::span(microbatch.begin).first(microbatch.sequences.size()))
            advance(batch.sequences_of(microbatch.entries[static_cast<size_t>(begin)]));
        for (const int32_t row : outdated_) drop(row);
        outdated_.clear();
        first_.push_back(reads_.size());
    }
}

// One microbatch's tokens of `ids`, which hold the same state: in the fresh row that they alone hold, or
// from the row that they share with others into a fresh one. What one sequence of a microbatch reads no
// other one writes.
void RecurrentPart::advance(std::span<const SequenceId> ids) noexcept {
    const Sequence& first = sequence(ids[0]);
    const int32_t before = first.fresh != kNone ? first.fresh : first.row;
    uint64_t& parted = parted_[static_cast<size_t>(before)];
    reads_.push_back(before);
    if (first.fresh != kNone && holders(before) == std::ssize(ids) && parted != n_placed_) {
        writes_.push_back(before);
        return;
    }
    parted = n_placed_;
    const int32_t row = rows_.take(kNone);
    writes_.push_back(row);
    for (const SequenceId s : ids) {
        Sequence& q = sequence(s);
        if (q.fresh != kNone && holders(q.fresh) > 1) {
            --holders(q.fresh);
        } else if (q.fresh != kNone) {
            outdated_.push_back(q.fresh);
        }
        q.fresh = row;
        hold(row);
    }
}

void RecurrentPart::commit() noexcept {
    for (const SequenceId s : touched_) {
        Sequence& q = sequence(s);
        drop(q.row);
        q.row = q.fresh;
        q.past = {q.begin, q.end};
        q.fresh = kNone;
    }
    touched_.clear();
}

void RecurrentPart::rollback() noexcept {
    for (const SequenceId s : touched_) {
        Sequence& q = sequence(s);
        if (q.fresh != kNone) drop(q.fresh);
        q.fresh = kNone;
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
    if (q.row == kZeroRow || range.end <= range.begin || range.end <= q.past.begin ||
        range.begin >= q.past.end)
        return Overlap::none;
    return range.begin <= q.past.begin && range.end >= q.past.end ? Overlap::whole : Overlap::part;
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
    const Overlap given = overlap(from, range);
    const Overlap replaced = overlap(to, range);
    const bool rest = sequence(to).row != kZeroRow && replaced != Overlap::whole;
    if (given == Overlap::part)
        throw UnsupportedError(text("positions [", range.begin, ", ", range.end, ") of sequence ",
                                    from, " cannot be copied: its state is of positions [",
                                    sequence(from).past.begin, ", ", sequence(from).past.end,
                                    ") and has no parts"));
    if (replaced == Overlap::part || (given == Overlap::whole && rest))
        throw UnsupportedError(text("positions [", range.begin, ", ", range.end, ") of sequence ",
                                    to, " cannot be replaced: its state is of positions [",
                                    sequence(to).past.begin, ", ", sequence(to).past.end,
                                    ") and has no parts"));
    return 0;
}

void RecurrentPart::copy(SequenceId from, SequenceId to, PositionRange range,
                         std::vector<RowMove>&) noexcept {
    const bool given = overlap(from, range) == Overlap::whole;
    if (overlap(to, range) == Overlap::whole) release(to);
    if (!given) return;
    hold(sequence(from).row);
    sequence(to) = sequence(from);
}

size_t RecurrentPart::check_reposition(SequenceId s, const Reposition& how) {
    PLAIT_CHECK(touched_.empty());
    const Sequence& q = sequence(s);
    if (q.row == kZeroRow) return 0;
    const auto moved = [&](Position p) {
        return how.range.contains(p) ? int64_t{p} / how.divisor + how.delta : int64_t{p};
    };
    const int64_t begin = moved(q.past.begin);
    const int64_t last = moved(q.past.end - 1);
    if (begin < 0)
        throw InvalidArgument(
            text("position ", q.past.begin, " of sequence ", s, " would become ", begin));
    if (last < begin || last >= INT32_MAX)
        throw InvalidArgument(text("position ", q.past.end - 1, " of sequence ", s,
                                   " would become ", last, ", expected ", begin, "..",
                                   INT32_MAX - 1));
    return 0;
}

void RecurrentPart::reposition(SequenceId s, const Reposition& how,
                               std::vector<RowMove>&) noexcept {
    Sequence& q = sequence(s);
    if (q.row != kZeroRow) q.past = {how(q.past.begin), how(q.past.end - 1) + 1};
}

void RecurrentPart::release(SequenceId s) noexcept {
    drop(sequence(s).row);
    sequence(s) = {};
}

bool RecurrentPart::can_end_at(SequenceId s, Position next) const {
    const Sequence& q = sequence(s);
    return q.row == kZeroRow || next >= q.past.end || next <= q.past.begin;
}

PartState RecurrentPart::describe(std::span<const SequenceId> sequences,
                                  std::vector<StateRows>& rows) const {
    PLAIT_CHECK(touched_.empty());
    PartState state;
    StateRows& found = rows.emplace_back();
    found.group = group_;
    std::vector<int32_t> item_of(holders_.size(), -1);
    for (const SequenceId s : sequences) {
        const Sequence& q = sequence(s);
        SequenceState& described = state.sequences.emplace_back();
        described.past = q.past;
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
                                  bool, std::vector<StateRows>& rows) {
    PLAIT_CHECK(touched_.empty() && state.sequences.size() == sequences.size());
    if (state.axes != 0)
        throw StateError(
            text("the state has recurrent states with ", state.axes, " positions, expected 0"));
    int32_t n_known = 0;
    for (const SequenceState& sequence : state.sequences) {
        const PositionRange past = sequence.past;
        const size_t expected = past.begin < past.end ? 1 : 0;
        if (past.begin < 0 || past.end < past.begin || sequence.items.size() != expected)
            throw StateError(text("a sequence of the state has ", sequence.items.size(),
                                  " recurrent states for positions [", past.begin, ", ", past.end,
                                  ")"));
        for (const int32_t item : sequence.items) {
            if (item < 0 || item > n_known)
                throw StateError(text("a sequence of the state holds recurrent state ", item,
                                      ", of ", state.n_items, ", out of turn"));
            n_known += item == n_known ? 1 : 0;
        }
    }
    if (n_known != state.n_items)
        throw StateError(text("no sequence of the state holds recurrent state ", n_known));
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
            hold(row);
            Sequence& q = sequence(sequences[i]);
            q.row = row;
            q.past = state.sequences[i].past;
        }
    }
}

}  // namespace plait
