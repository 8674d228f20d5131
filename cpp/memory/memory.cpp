#include "memory/memory.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"

namespace plait {

namespace {

std::string_view memory_name(const MemoryLayout& layout, const MemoryOptions& options) {
    const bool has_cells = layout.has_cells();
    for (const GroupInfo& group : layout.groups) {
        const PartKind& kind = *group.kind;
        const auto name = has_cells ? kind.memory_name_with_cells : kind.memory_name;
        if (!name.empty()) return name;
    }
    if (!has_cells) return "none";
    const bool any_window = std::ranges::any_of(layout.groups, [](const GroupInfo& group) {
        return group.kind->has_cells && group.window.kind != WindowKind::full;
    });
    return any_window ? "sliding" : options.streams ? "streams" : "unified";
}

}  // namespace

Memory::Memory(MemoryLayout layout, const MemoryOptions& options, Parts parts)
    : kind_(memory_name(layout, options)),
      layout_(std::move(layout)),
      n_sequences_(options.n_seq_max),
      needs_constant_coupling_(std::ranges::any_of(
          layout_.groups, [](const GroupInfo& group) { return group.kind->holds_states; })),
      parts_(std::move(parts)),
      lineage_(options.n_seq_max) {
    PLAIT_CHECK(parts_.of_group.size() == layout_.groups.size());
    PLAIT_CHECK(std::ranges::find(parts_.of_group, nullptr) == parts_.of_group.end());
}

std::optional<PositionBounds> Memory::positions(SequenceId sequence) const {
    return first() == nullptr ? std::nullopt : first()->positions(sequence);
}

int32_t Memory::n_streams() const { return first() == nullptr ? 1 : first()->n_streams(); }
int64_t Memory::n_cells() const { return first() == nullptr ? 0 : first()->n_cells(); }
int64_t Memory::n_used() const { return first() == nullptr ? 0 : first()->n_used(); }

std::vector<Cell> Memory::cells() const {
    return first() == nullptr ? std::vector<Cell>{} : first()->cells();
}

bool Memory::holds(SequenceId sequence) const {
    return positions(sequence) || std::ranges::any_of(parts_.list, [&](const auto& part) {
               return !part->rows_of(sequence).empty();
           });
}

std::vector<SequenceId> Memory::held_sequences() const {
    std::vector<SequenceId> held;
    for (SequenceId s = 0; s < n_sequences_; ++s)
        if (holds(s)) held.push_back(s);
    return held;
}

RunCount Memory::count_runs() const {
    return first() == nullptr ? RunCount{} : first()->count_runs();
}

Position Memory::next(SequenceId sequence) const {
    const auto held = positions(sequence);
    return held ? held->max + 1 : 0;
}

bool Memory::same_content(std::span<const SequenceId> sequences) const {
    return std::ranges::all_of(parts_.list,
                               [&](const auto& part) { return part->same_content(sequences); });
}

const SequenceIndex& Memory::sequences(StepKind kind) const {
    if (kind == StepKind::encode) return empty_sequences_;
    return *this;
}

Part& Memory::part_of(uint8_t group) const {
    PLAIT_CHECK(group < parts_.of_group.size());
    return *parts_.of_group[group];
}

void Memory::place(StepKind kind, const PreparedBatch& batch,
                   std::span<const Microbatch> microbatches) {
    PLAIT_CHECK(!in_step_);
    for (const auto& part : parts_.list) part->check_batch(kind, batch);
    try {
        for (const auto& part : parts_.list) part->place(kind, batch, microbatches);
    } catch (...) {
        rollback();
        throw;
    }
    in_step_ = true;
}

GroupView Memory::view(uint8_t group, size_t microbatch) {
    PLAIT_CHECK(in_step_);
    return part_of(group).view(layout_.groups[group], microbatch);
}

void Memory::commit() noexcept {
    for (const auto& part : parts_.list) part->commit();
    in_step_ = false;
}

void Memory::rollback() noexcept {
    for (const auto& part : parts_.list) part->rollback();
    in_step_ = false;
}

bool Memory::remove(SequenceId sequence, PositionRange range) {
    PLAIT_CHECK(!in_step_);
    for (const auto& part : parts_.list)
        if (!part->can_remove(sequence, range)) return false;
    for (const auto& part : parts_.list) part->remove(sequence, range);
    if (range.end > range.begin) cut_lineage(sequence, range.begin);
    return true;
}

void Memory::copy(SequenceId from, SequenceId to, PositionRange range,
                  std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    if (from == to) return;
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_copy(from, to, range);
    lineage_.reserve_fork(from, to);
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->copy(from, to, range, moves);
    if (range.begin <= 0) lineage_.fork(from, to, std::min(range.end, next(from)));
    if (range.end > range.begin) cut_lineage(to, range.begin <= 0 ? INT32_MAX : range.begin);
}

// Records that an edit changed the sequence from `begin` on. If the sequence ends before `begin`,
// the tokens decoded next are new as well.
void Memory::cut_lineage(SequenceId sequence, Position begin) noexcept {
    lineage_.cut(sequence, std::min(begin, next(sequence)));
}

void Memory::release(SequenceId sequence) noexcept {
    for (const auto& part : parts_.list) part->release(sequence);
    lineage_.cut(sequence, 0);
}

void Memory::keep(SequenceId sequence) {
    PLAIT_CHECK(!in_step_);
    for (SequenceId s = 0; s < n_sequences_; ++s)
        if (s != sequence) release(s);
}

void Memory::clear() {
    PLAIT_CHECK(!in_step_);
    for (SequenceId s = 0; s < n_sequences_; ++s) release(s);
}

void Memory::own(uint8_t group, SequenceId sequence, std::span<int32_t> keys,
                 std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    if (keys.empty()) return;
    Part& part = part_of(group);
    const Position first = part.positions_of(sequence).at(static_cast<size_t>(keys.front()));
    moves.reserve(moves.size() + part.check_own(sequence, keys));
    part.own(sequence, keys, moves);
    cut_lineage(sequence, first);
}

bool Memory::can_shift() const {
    return std::ranges::all_of(parts_.list, [](const auto& part) { return part->can_shift(); });
}

bool Memory::can_partial_remove() const {
    return std::ranges::all_of(parts_.list,
                               [](const auto& part) { return part->can_partial_remove(); });
}

void Memory::add(SequenceId sequence, PositionRange range, int32_t delta,
                 std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("tokens with several position axes cannot be shifted");
    if (delta != 0) reposition(sequence, {.range = range, .delta = delta}, moves);
}

void Memory::divide(SequenceId sequence, PositionRange range, int32_t divisor,
                    std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("tokens with several position axes cannot be divided");
    if (divisor < 1)
        throw InvalidArgument(text("the divisor is ", divisor, ", expected 1 or more"));
    if (divisor != 1) reposition(sequence, {.range = range, .divisor = divisor}, moves);
}

void Memory::reposition(SequenceId sequence, const Reposition& how, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_reposition(sequence, how);
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->reposition(sequence, how, moves);
    const Position begin = how.range.begin;
    cut_lineage(sequence,
                static_cast<Position>(std::clamp<int64_t>(how.unchecked(begin), 0, begin)));
}

void Memory::discard(SequenceId sequence, PositionRange range, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    if (!can_shift()) throw UnsupportedError("tokens with several position axes cannot be shifted");
    for (const auto& part : parts_.list)
        if (!part->can_remove(sequence, range))
            throw UnsupportedError(text("a ", kind_, " memory cannot remove positions [",
                                        range.begin, ", ", range.end, ") of sequence ", sequence));
    if (range.begin == range.end) return;
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_discard(sequence, range);
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->discard(sequence, range, moves);
    cut_lineage(sequence, range.begin);
}

bool Memory::has_shifts() const {
    return std::ranges::any_of(parts_.list, [](const auto& part) { return part->has_shifts(); });
}

void Memory::take_shifts(std::vector<KeyShift>& shifts) {
    PLAIT_CHECK(!in_step_);
    size_t n = 0;
    for (const auto& part : parts_.list) n += part->n_shifts();
    shifts.reserve(shifts.size() + n);
    for (const auto& part : parts_.list) part->take_shifts(shifts);
}

void Memory::begin_transaction() {
    PLAIT_CHECK(!in_step_);
    saved_lineages_.push(lineage_);
    size_t n_begun = 0;
    try {
        for (; n_begun < parts_.list.size(); ++n_begun) parts_.list[n_begun]->begin_transaction();
    } catch (...) {
        while (n_begun-- > 0) parts_.list[n_begun]->commit_transaction();
        saved_lineages_.pop();
        throw;
    }
}

void Memory::commit_transaction() noexcept {
    for (const auto& part : parts_.list) part->commit_transaction();
    saved_lineages_.pop();
}

void Memory::roll_back_transaction() noexcept {
    for (const auto& part : parts_.list) part->roll_back_transaction();
    lineage_.swap(saved_lineages_.top());
    saved_lineages_.pop();
}

void Memory::replace_kept_shifts(std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    if (n_transactions() == 0) return;
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_replace_kept_shifts();
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->replace_kept_shifts(moves);
}

void Memory::check_kept_shifts() {
    for (const auto& part : parts_.list) part->check_replace_kept_shifts();
}

bool Memory::can_end_at(SequenceId sequence, Position next) const {
    return std::ranges::all_of(parts_.list,
                               [&](const auto& part) { return part->can_end_at(sequence, next); });
}

RewindPoint Memory::rewind_point(SequenceId sequence, Position wanted) const {
    wanted = std::clamp(wanted, 0, next(sequence));
    RewindPoint best{0, sequence};
    if (can_end_at(sequence, wanted)) return {wanted, sequence};
    const std::vector<Position> common_with = lineage_.common(sequence);
    for (SequenceId fork = 0; fork < n_sequences_; ++fork) {
        if (fork == sequence) continue;
        const Position common = std::min(wanted, common_with[static_cast<size_t>(fork)]);
        // The common prefix; if its end cannot be kept (a recurrent state), the whole fork.
        for (const Position at : {common, std::min(common, next(fork))}) {
            if (at <= best.next || !can_end_at(fork, at)) continue;
            best = {at, fork};
            break;
        }
    }
    return best;
}

void Memory::refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_ && point.from != to);
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->reserve_fork(point.from, to);
    lineage_.reserve_fork(point.from, to);
    moves.reserve(moves.size() + n_moves);
    // Nothing below can fail: reserve_fork() has allocated memory, and `to` is empty.
    release(to);
    copy(point.from, to, {.end = point.next}, moves);
}

int64_t Memory::defragment(int64_t max_moves, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!in_step_);
    if (max_moves < 1)
        throw InvalidArgument(text("max_moves is ", max_moves, ", expected 1 or more"));
    if (n_transactions() > 0) return 0;
    // The rows of parts are independent, so one round may consist of the moves of a single part.
    for (const auto& part : parts_.list)
        if (const int64_t n = part->defragment(max_moves, moves); n > 0) return n;
    return 0;
}

MemoryState Memory::describe(std::optional<SequenceId> sequence,
                             std::vector<StateRows>& rows) const {
    PLAIT_CHECK(!in_step_ && !has_shifts());
    MemoryState state{.whole = !sequence};
    state.sequences = sequence ? std::vector{*sequence} : held_sequences();
    rows.clear();
    for (const auto& part : parts_.list) {
        const size_t before = rows.size();
        state.parts.push_back(part->describe(state.sequences, rows));
        state.parts.back().kind = part->kind().code;
        for (size_t i = before; i < rows.size(); ++i)
            rows[i].part = static_cast<uint32_t>(state.parts.size() - 1);
    }
    return state;
}

// Checks that the state has the parts of this memory and that they end at the same positions;
// Part::check_restore() checks the rest.
void Memory::check_state(const MemoryState& state) const {
    if (state.parts.size() != parts_.list.size())
        throw StateError(
            text("the state has ", state.parts.size(), " parts, expected ", parts_.list.size()));
    for (size_t i = 0; i < state.parts.size(); ++i) {
        const PartKind& kind = parts_.list[i]->kind();
        if (state.parts[i].kind != kind.code)
            throw StateError(text("part ", i, " of the state is of kind ", int{state.parts[i].kind},
                                  ", expected ", int{kind.code}, " (", kind.name, ")"));
        if (state.parts[i].sequences.size() != state.sequences.size())
            throw StateError(text("the state has ", state.sequences.size(), " sequences, but part ",
                                  i, " has ", state.parts[i].sequences.size()));
    }
    for (size_t s = 0; s < state.sequences.size(); ++s) {
        std::optional<Position> end;
        for (size_t i = 0; i < state.parts.size(); ++i) {
            const auto own = parts_.list[i]->end_of(state.parts[i], s);
            if (own && end.value_or(*own) != *own)
                throw StateError(text("sequence ", state.sequences[s], " of the state ends at ",
                                      *end, " in one part and at ", *own, " in another"));
            if (own) end = own;
        }
    }
}

std::vector<SequenceId> Memory::targets(const MemoryState& state,
                                        std::optional<SequenceId> to) const {
    if (state.whole && to)
        throw StateError("the state is that of a whole memory, expected one sequence");
    if (!state.whole && state.sequences.size() != 1)
        throw StateError(text("the state has ", state.sequences.size(), " sequences, expected 1"));
    if (to) return {*to};
    SequenceId before = -1;
    for (const SequenceId s : state.sequences) {
        if (s <= before || s >= n_sequences_)
            throw StateError(
                text("the state has sequence ", s, " after ", before,
                     ", expected ascending ids up to n_seq_max - 1 = ", n_sequences_ - 1));
        before = s;
    }
    return state.sequences;
}

void Memory::restore(const MemoryState& state, std::optional<SequenceId> to,
                     std::vector<StateRows>& rows) {
    PLAIT_CHECK(!in_step_);
    const std::vector<SequenceId> sequences = targets(state, to);
    check_state(state);
    std::vector<StateRows> found;
    std::vector<size_t> first_of_part{0};
    for (size_t i = 0; i < parts_.list.size(); ++i) {
        parts_.list[i]->check_restore(state.parts[i], sequences, state.whole, found);
        first_of_part.push_back(found.size());
        for (size_t j = first_of_part[i]; j < found.size(); ++j)
            found[j].part = static_cast<uint32_t>(i);
    }
    if (state.whole) {
        for (SequenceId s = 0; s < n_sequences_; ++s) release(s);
    } else {
        release(sequences[0]);
    }
    for (size_t i = 0; i < parts_.list.size(); ++i)
        parts_.list[i]->restore(
            state.parts[i], sequences,
            std::span(found).subspan(first_of_part[i], first_of_part[i + 1] - first_of_part[i]));
    rows.swap(found);
}

uint32_t Memory::state_part(uint8_t group) const {
    const auto found = std::ranges::find(parts_.list, &part_of(group), &std::unique_ptr<Part>::get);
    return static_cast<uint32_t>(found - parts_.list.begin());
}

}  // namespace plait
