#include "memory/hybrid.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace plait {

HybridMemory::HybridMemory(std::string_view kind, MemoryLayout layout, const MemoryOptions& options,
                           Parts parts)
    : kind_(kind),
      layout_(std::move(layout)),
      n_sequences_(options.n_seq_max),
      steady_company_(std::ranges::any_of(
          layout_.groups, [](const GroupInfo& g) { return g.kind == GroupKind::recurrent; })),
      parts_(std::move(parts)),
      lineage_(options.n_seq_max) {
    PLAIT_CHECK(!parts_.list.empty() && parts_.of_group.size() == layout_.groups.size());
}

std::optional<PositionBounds> HybridMemory::positions(SequenceId sequence) const {
    return first().positions(sequence);
}

Position HybridMemory::next(SequenceId sequence) const {
    const auto held = positions(sequence);
    return held ? held->max + 1 : 0;
}

bool HybridMemory::same_content(std::span<const SequenceId> sequences) const {
    return std::ranges::all_of(parts_.list,
                               [&](const auto& part) { return part->same_content(sequences); });
}

const SequenceIndex& HybridMemory::past(StepKind kind) const {
    if (kind == StepKind::encode) return no_past_;
    return *this;
}

Part& HybridMemory::part_of(uint8_t group) const {
    PLAIT_CHECK(group < parts_.of_group.size());
    return *parts_.of_group[group];
}

void HybridMemory::place(StepKind kind, const PreparedBatch& batch, std::span<const Piece> pieces) {
    PLAIT_CHECK(!under_way_);
    for (const auto& part : parts_.list) part->check_batch(kind, batch);
    try {
        for (const auto& part : parts_.list) part->place(kind, batch, pieces);
    } catch (...) {
        rollback();
        throw;
    }
    under_way_ = true;
}

AttentionView HybridMemory::attention(uint8_t group, size_t piece) {
    PLAIT_CHECK(under_way_);
    return part_of(group).attention(layout_.groups[group], piece);
}

RecurrentView HybridMemory::recurrent(uint8_t group, size_t piece) {
    PLAIT_CHECK(under_way_);
    return part_of(group).recurrent(piece);
}

void HybridMemory::commit() noexcept {
    for (const auto& part : parts_.list) part->commit();
    under_way_ = false;
}

void HybridMemory::rollback() noexcept {
    for (const auto& part : parts_.list) part->rollback();
    under_way_ = false;
}

bool HybridMemory::remove(SequenceId sequence, PositionRange range) {
    PLAIT_CHECK(!under_way_);
    for (const auto& part : parts_.list)
        if (!part->can_remove(sequence, range)) return false;
    for (const auto& part : parts_.list) part->remove(sequence, range);
    if (range.end > range.begin) changed(sequence, range.begin);
    return true;
}

void HybridMemory::copy(SequenceId from, SequenceId to, PositionRange range,
                        std::vector<RowMove>& moves) {
    PLAIT_CHECK(!under_way_);
    if (from == to) return;
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_copy(from, to, range);
    lineage_.reserve_fork(from, to);
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->copy(from, to, range, moves);
    if (range.begin <= 0) lineage_.fork(from, to, std::min(range.end, next(from)));
    if (range.end > range.begin) changed(to, range.begin <= 0 ? INT32_MAX : range.begin);
}

// What comes next is new, even if it comes before `begin`.
void HybridMemory::changed(SequenceId sequence, Position begin) noexcept {
    lineage_.cut(sequence, std::min(begin, next(sequence)));
}

void HybridMemory::release(SequenceId sequence) noexcept {
    for (const auto& part : parts_.list) part->release(sequence);
    lineage_.cut(sequence, 0);
}

void HybridMemory::keep(SequenceId sequence) {
    PLAIT_CHECK(!under_way_);
    for (SequenceId s = 0; s < n_sequences_; ++s)
        if (s != sequence) release(s);
}

void HybridMemory::clear() {
    PLAIT_CHECK(!under_way_);
    for (SequenceId s = 0; s < n_sequences_; ++s) release(s);
}

bool HybridMemory::can_shift() const {
    return std::ranges::all_of(parts_.list, [](const auto& part) { return part->can_shift(); });
}

bool HybridMemory::can_partial_remove() const {
    return std::ranges::all_of(parts_.list,
                               [](const auto& part) { return part->can_partial_remove(); });
}

void HybridMemory::add(SequenceId sequence, PositionRange range, int32_t delta,
                       std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("positions with several axes cannot be shifted");
    if (delta != 0) reposition(sequence, {.range = range, .delta = delta}, moves);
}

void HybridMemory::divide(SequenceId sequence, PositionRange range, int32_t divisor,
                          std::vector<RowMove>& moves) {
    if (!can_shift()) throw UnsupportedError("positions with several axes cannot be divided");
    if (divisor < 1)
        throw InvalidArgument(text("the divisor is ", divisor, ", expected 1 or more"));
    if (divisor != 1) reposition(sequence, {.range = range, .divisor = divisor}, moves);
}

void HybridMemory::reposition(SequenceId sequence, const Reposition& how,
                              std::vector<RowMove>& moves) {
    PLAIT_CHECK(!under_way_);
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->check_reposition(sequence, how);
    moves.reserve(moves.size() + n_moves);
    for (const auto& part : parts_.list) part->reposition(sequence, how, moves);
    changed(sequence, std::clamp(how(how.range.begin), 0, how.range.begin));
}

bool HybridMemory::has_shifts() const {
    return std::ranges::any_of(parts_.list, [](const auto& part) { return part->has_shifts(); });
}

void HybridMemory::take_shifts(std::vector<KeyShift>& shifts) {
    PLAIT_CHECK(!under_way_);
    size_t n = 0;
    for (const auto& part : parts_.list) n += part->n_shifts();
    shifts.reserve(shifts.size() + n);
    for (const auto& part : parts_.list) part->take_shifts(shifts);
}

bool HybridMemory::can_end_at(SequenceId sequence, Position next) const {
    return std::ranges::all_of(parts_.list,
                               [&](const auto& part) { return part->can_end_at(sequence, next); });
}

RewindPoint HybridMemory::rewind_point(SequenceId sequence, Position wanted) const {
    wanted = std::clamp(wanted, 0, next(sequence));
    RewindPoint best{0, sequence};
    if (can_end_at(sequence, wanted)) return {wanted, sequence};
    for (SequenceId fork = 0; fork < n_sequences_; ++fork) {
        if (fork == sequence) continue;
        const Position common = std::min(wanted, lineage_.common(sequence, fork));
        // As far as both are the same; or, of what has no parts, all.
        for (const Position at : {common, std::min(common, next(fork))}) {
            if (at <= best.next || !can_end_at(fork, at)) continue;
            best = {at, fork};
            break;
        }
    }
    return best;
}

void HybridMemory::refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!under_way_ && point.from != to);
    size_t n_moves = 0;
    for (const auto& part : parts_.list) n_moves += part->reserve_fork(point.from, to);
    lineage_.reserve_fork(point.from, to);
    moves.reserve(moves.size() + n_moves);
    // Nothing below needs memory: what a fork still has fits where nothing is held.
    release(to);
    copy(point.from, to, {.end = point.next}, moves);
}

int64_t HybridMemory::defragment(int64_t max_moves, std::vector<RowMove>& moves) {
    PLAIT_CHECK(!under_way_);
    if (max_moves < 1)
        throw InvalidArgument(text("max_moves is ", max_moves, ", expected 1 or more"));
    // Parts number their rows for themselves, so a round of each is a round.
    for (const auto& part : parts_.list)
        if (const int64_t n = part->defragment(max_moves, moves); n > 0) return n;
    return 0;
}

RunCount HybridMemory::count_runs() const { return first().count_runs(); }

MemoryState HybridMemory::describe(std::optional<SequenceId> sequence,
                                   std::vector<StateRows>& rows) const {
    PLAIT_CHECK(!under_way_ && !has_shifts());
    MemoryState state{.whole = !sequence};
    if (sequence) {
        state.sequences = {*sequence};
    } else {
        const auto holds = [&](SequenceId s) {
            return std::ranges::any_of(parts_.list,
                                       [&](const auto& part) { return !part->rows_of(s).empty(); });
        };
        for (SequenceId s = 0; s < n_sequences_; ++s)
            if (holds(s)) state.sequences.push_back(s);
    }
    rows.clear();
    for (const auto& part : parts_.list) {
        const size_t before = rows.size();
        state.parts.push_back(part->describe(state.sequences, rows));
        for (size_t i = before; i < rows.size(); ++i)
            rows[i].part = static_cast<uint32_t>(state.parts.size() - 1);
    }
    return state;
}

// That the parts are there and end at the same positions; each looks at the rest itself.
void HybridMemory::check_state(const MemoryState& state) const {
    if (state.parts.size() != parts_.list.size())
        throw StateError(
            text("the state has ", state.parts.size(), " parts, this memory ", parts_.list.size()));
    for (const PartState& part : state.parts)
        if (part.sequences.size() != state.sequences.size())
            throw StateError(text("the state has ", state.sequences.size(), " sequences, a part ",
                                  part.sequences.size()));
    for (size_t s = 0; s < state.sequences.size(); ++s) {
        std::optional<Position> end;
        for (const PartState& part : state.parts) {
            Position own = 0;
            const auto& items = part.sequences[s].items;
            if (part.kind == GroupKind::recurrent) {
                own = part.sequences[s].past.end;
            } else if (part.kind == GroupKind::attention && part.axes == 1 && !items.empty()) {
                const auto last = static_cast<size_t>(items.back());
                if (items.back() < 0 || last >= part.positions.size() ||
                    part.positions[last] == INT32_MAX)
                    throw StateError("a sequence of the state holds a token that is not there");
                own = part.positions[last] + 1;
            } else if (part.kind != GroupKind::attention || part.axes != 1) {
                continue;
            }
            if (end.value_or(own) != own)
                throw StateError(text("sequence ", state.sequences[s], " of the state ends at ",
                                      *end, " in one part and at ", own, " in another"));
            end = own;
        }
    }
}

std::vector<SequenceId> HybridMemory::targets(const MemoryState& state,
                                              std::optional<SequenceId> to) const {
    if (state.whole && to) throw StateError("the state is of a whole memory, not of one sequence");
    if (!state.whole && state.sequences.size() != 1)
        throw StateError(text("the state has ", state.sequences.size(), " sequences, expected 1"));
    if (to) return {*to};
    SequenceId before = -1;
    for (const SequenceId s : state.sequences) {
        if (s <= before || s >= n_sequences_)
            throw StateError(text("the state has sequence ", s, " after ", before,
                                  ", expected ids ", "that rise to ", n_sequences_ - 1,
                                  " (n_seq_max - 1) at most"));
        before = s;
    }
    return state.sequences;
}

void HybridMemory::adopt(const MemoryState& state, std::optional<SequenceId> to,
                         std::vector<StateRows>& rows) {
    PLAIT_CHECK(!under_way_);
    const std::vector<SequenceId> sequences = targets(state, to);
    check_state(state);
    std::vector<StateRows> found;
    std::vector<size_t> first_of_part{0};
    for (size_t i = 0; i < parts_.list.size(); ++i) {
        parts_.list[i]->check_adopt(state.parts[i], sequences, state.whole, found);
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
        parts_.list[i]->adopt(
            state.parts[i], sequences,
            std::span(found).subspan(first_of_part[i], first_of_part[i + 1] - first_of_part[i]));
    rows.swap(found);
}

uint32_t HybridMemory::state_part(uint8_t group) const {
    const auto found = std::ranges::find(parts_.list, &part_of(group), &std::unique_ptr<Part>::get);
    return static_cast<uint32_t>(found - parts_.list.begin());
}

}  // namespace plait
