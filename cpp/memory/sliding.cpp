#include "memory/sliding.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/window.h"

namespace plait {
namespace {

bool empty(PositionRange range) { return range.begin >= range.end; }
PositionRange or_none(PositionRange range) { return empty(range) ? PositionRange{0, 0} : range; }

PositionRange inside(PositionRange a, PositionRange b) {
    return or_none({std::max(a.begin, b.begin), std::min(a.end, b.end)});
}

// What is left of `a` without `b`; all of it where `b` only makes a hole.
PositionRange without(PositionRange a, PositionRange b) {
    if (b.begin <= a.begin) a.begin = std::max(a.begin, b.end);
    if (b.end >= a.end) a.end = std::min(a.end, b.begin);
    return or_none(a);
}

PositionRange around(PositionRange a, PositionRange b) {
    if (empty(a)) return b;
    if (empty(b)) return a;
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

}  // namespace

// If tokens have several axes, any number of them can share a position, so no number of rows is
// enough for a window.
bool frees_rows(const Window& window, const MemoryOptions& options) {
    return window.kind != WindowKind::full && !options.swa_full && options.axes == 1;
}

int64_t sliding_rows(const Window& window, const MemoryOptions& options) {
    const int64_t kept = std::min(max_kept(window), options.n_ctx);
    if (options.streams) return std::min(kept + options.n_batch, options.n_ctx);
    return std::min(options.n_seq_max * kept + options.n_batch, *options.n_cells);
}

SlidingPart::SlidingPart(const MemoryLayout& layout, std::vector<uint8_t> groups,
                         const MemoryOptions& options)
    : AttentionPart(layout, groups, options),
      window_(layout.groups[groups.at(0)].window),
      n_ctx_(options.n_ctx),
      retired_(static_cast<size_t>(options.n_seq_max), PositionRange{0, 0}) {}

void SlidingPart::place(StepKind kind, const PreparedBatch& batch,
                        std::span<const Microbatch> microbatches) {
    AttentionPart::place(kind, batch, microbatches);
    if (kind == StepKind::decode) batch_ = &batch;
}

void SlidingPart::commit() noexcept {
    AttentionPart::commit();
    if (batch_ == nullptr) return;
    for (const SequenceId s : batch_->touched) retire(s);
    batch_ = nullptr;
}

void SlidingPart::rollback() noexcept {
    AttentionPart::rollback();
    batch_ = nullptr;
}

void SlidingPart::retire(SequenceId s) noexcept {
    const int32_t n = table_.n_keys(s);
    if (n == 0) return;
    const int32_t n_out = table_.first_key_from(s, oldest_kept(window_, position_of(s, n - 1)));
    if (n_out == 0) return;
    const PositionRange out{position_of(s, 0), position_of(s, n_out - 1) + 1};
    retired(s) = around(retired(s), out);
    table_.release_front(s, n_out);
}

bool SlidingPart::sees_all(std::optional<Position> last, PositionRange retired) const {
    return empty(retired) || (last && retired.end <= oldest_kept(window_, *last));
}

bool SlidingPart::can_remove(SequenceId sequence, PositionRange range) {
    AttentionPart::can_remove(sequence, range);
    const KeyRange keys = table_.keys(sequence, range);
    const int32_t n = table_.n_keys(sequence);
    if (keys.size() == 0) return true;  // what it has given back may go, and goes on to count
    const int32_t last = keys.end < n ? n - 1 : keys.begin - 1;
    return sees_all(last < 0 ? std::nullopt : std::optional(position_of(sequence, last)),
                    without(past(sequence), range));
}

void SlidingPart::remove(SequenceId sequence, PositionRange range) noexcept {
    AttentionPart::remove(sequence, range);
    retired(sequence) = without(retired(sequence), range);
}

bool SlidingPart::can_end_at(SequenceId sequence, Position next) const {
    const int32_t n = table_.first_key_from(sequence, next);
    return sees_all(n == 0 ? std::nullopt : std::optional(position_of(sequence, n - 1)),
                    without(past(sequence), {next, INT32_MAX}));
}

SlidingPart::Copy SlidingPart::plan_copy(SequenceId from, SequenceId to,
                                         PositionRange range) const {
    const KeyRange keys = table_.keys(from, range);
    const KeyRange replaced = table_.keys(to, range);
    const int32_t n = table_.n_keys(to);
    Copy copy{.range = range, .keys = keys, .replaced = replaced};
    copy.retired = around(inside(past(from), range), without(past(to), range));
    if (replaced.end < n) {
        copy.last = position_of(to, n - 1);
    } else if (keys.size() > 0) {
        copy.last = position_of(from, keys.end - 1);
    } else if (replaced.begin > 0) {
        copy.last = position_of(to, replaced.begin - 1);
    } else {
        return copy;
    }
    // Keys that the result cannot see any more are not even copied.
    const Position oldest = oldest_kept(window_, *copy.last);
    copy.range.begin = std::max(range.begin, std::min(oldest, range.end));
    copy.keys = table_.keys(from, copy.range);
    copy.n_dropped = table_.first_key_from(to, std::min(oldest, range.begin));
    copy.replaced = {replaced.begin - copy.n_dropped, replaced.end - copy.n_dropped};
    return copy;
}

size_t SlidingPart::check_copy(SequenceId from, SequenceId to, PositionRange range) {
    const Copy copy = plan_copy(from, to, range);
    if (!sees_all(copy.last, copy.retired))
        throw UnsupportedError(text("positions [", range.begin, ", ", range.end, ") of sequence ",
                                    from, " cannot be copied to sequence ", to, ": ",
                                    copy.last ? text("what follows position ", *copy.last, " sees")
                                              : text("they are made of"),
                                    " keys up to position ", copy.retired.end - 1,
                                    ", which the window has given back"));
    const int64_t free = n_ctx_ - (table_.n_keys(to) - copy.n_dropped) + copy.replaced.size();
    if (copy.keys.size() > free)
        throw CacheFull(
            text("copying ", copy.keys.size(), " cells of sequence ", from, " to sequence ", to,
                 ", of whose n_ctx = ", n_ctx_, " only ", free, " are free"),
            copy.keys.size(), free);
    return reserve_copy(from, copy.keys, to, copy.replaced, copy.n_dropped);
}

void SlidingPart::copy(SequenceId from, SequenceId to, PositionRange range,
                       std::vector<RowMove>& moves) noexcept {
    const Copy copy = plan_copy(from, to, range);
    PositionRange out{0, 0};
    if (copy.n_dropped > 0) out = {position_of(to, 0), position_of(to, copy.n_dropped - 1) + 1};
    const KeyRange given = table_.keys(from, {range.begin, copy.range.begin});
    if (given.size() > 0)
        out = around(out, {position_of(from, given.begin), position_of(from, given.end - 1) + 1});
    table_.release_front(to, copy.n_dropped);
    copy_keys(from, copy.keys, to, copy.replaced, moves);
    retired(to) = around(copy.retired, out);
}

size_t SlidingPart::check_reposition(SequenceId sequence, const Reposition& how) {
    const size_t n_moves = AttentionPart::check_reposition(sequence, how);
    const PositionRange out = past(sequence);
    if (empty(out)) return n_moves;
    const auto moved = [&](Position p) {
        return how.range.contains(p) ? int64_t{p} / how.divisor + how.delta : int64_t{p};
    };
    if (moved(out.begin) < 0)
        throw InvalidArgument(text("position ", out.begin, " of sequence ", sequence,
                                   " would become ", moved(out.begin)));
    const int64_t first = moved(position_of(sequence, 0));
    if (moved(out.end - 1) > first)
        throw InvalidArgument(text("position ", out.end - 1, " of sequence ", sequence,
                                   " would become ", moved(out.end - 1), ", after position ", first,
                                   " that follows it"));
    const int64_t last = moved(position_of(sequence, table_.n_keys(sequence) - 1));
    if (moved(out.end - 1) >= oldest_kept(window_, static_cast<Position>(last)))
        throw UnsupportedError(text("sequence ", sequence, " would see keys up to position ",
                                    moved(out.end - 1), ", which its window has given back"));
    return n_moves;
}

void SlidingPart::reposition(SequenceId sequence, const Reposition& how,
                             std::vector<RowMove>& moves) noexcept {
    AttentionPart::reposition(sequence, how, moves);
    PositionRange& out = retired(sequence);
    if (!empty(out)) out = {how(out.begin), how(out.end - 1) + 1};
    retire(sequence);
}

void SlidingPart::release(SequenceId sequence) noexcept {
    AttentionPart::release(sequence);
    retired(sequence) = {0, 0};
}

void SlidingPart::check_restore(const PartState& state, std::span<const SequenceId> sequences,
                                bool whole, std::vector<StateRows>& rows) {
    AttentionPart::check_restore(state, sequences, whole, rows);
    for (const SequenceState& sequence : state.sequences) {
        std::optional<Position> last;
        if (!sequence.items.empty())
            last = state.positions[static_cast<size_t>(sequence.items.back()) *
                                   static_cast<size_t>(state.axes)];
        const PositionRange past = sequence.past;
        if (past.begin < 0 || past.end < past.begin || !sees_all(last, past))
            throw StateError(text("the state of a sequence lacks keys of its window: positions ",
                                  past.begin, " to ", past.end, " were given back"));
    }
}

void SlidingPart::restore(const PartState& state, std::span<const SequenceId> sequences,
                          std::span<StateRows> rows) noexcept {
    AttentionPart::restore(state, sequences, rows);
    for (size_t i = 0; i < sequences.size(); ++i) retired(sequences[i]) = state.sequences[i].past;
}

}  // namespace plait
