#include "memory/sliding.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "memory/window.h"

namespace plait {
namespace {

bool empty(PositionRange range) { return range.begin >= range.end; }
PositionRange normalized(PositionRange range) { return empty(range) ? PositionRange{0, 0} : range; }

PositionRange intersection(PositionRange a, PositionRange b) {
    return normalized({std::max(a.begin, b.begin), std::min(a.end, b.end)});
}

// Returns `a` without `b`, or all of `a` if the rest would consist of two ranges.
PositionRange minus(PositionRange a, PositionRange b) {
    if (b.begin <= a.begin) a.begin = std::max(a.begin, b.end);
    if (b.end >= a.end) a.end = std::min(a.end, b.begin);
    return normalized(a);
}

// Returns the smallest range that contains both.
PositionRange hull(PositionRange a, PositionRange b) {
    if (empty(a)) return b;
    if (empty(b)) return a;
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// Returns the interval of what the positions of `freed`, which is not empty, become. Its ends are
// unchecked. Without a full part, which would refuse it, the range can move the first positions
// beyond the last one; the interval then does not contain them.
PositionInterval repositioned(PositionRange freed, const Reposition& how) {
    const auto moved = [&](Position p) {
        return how.range.contains(p) ? how.unchecked(p) : int64_t{p};
    };
    const int64_t last = moved(freed.end - 1);
    return {std::min(moved(freed.begin), last), last};
}

// Returns the position, or the end of a range, after `gap` has been removed and closed.
Position closed(Position p, PositionRange gap) {
    return p <= gap.begin ? p : std::max(gap.begin, p - (gap.end - gap.begin));
}

PositionRange closed(PositionRange range, PositionRange gap) {
    return normalized({closed(range.begin, gap), closed(range.end, gap)});
}

}  // namespace

// If tokens have several axes, any number of them can share a position, so the number of keys in a
// window is unbounded.
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
      beside_full_(std::ranges::any_of(layout.groups,
                                       [&](const GroupInfo& group) {
                                           return group.kind == layout.groups[groups.at(0)].kind &&
                                                  !frees_rows(group.window, options);
                                       })),
      n_ctx_(options.n_ctx),
      freed_(static_cast<size_t>(options.n_seq_max), PositionRange{0, 0}) {}

void SlidingPart::place(StepKind kind, const PreparedBatch& batch,
                        std::span<const Microbatch> microbatches) {
    if (kind == StepKind::decode)
        for (const SequenceId s : batch.touched) table_.save(s);  // for commit()
    AttentionPart::place(kind, batch, microbatches);
    if (kind == StepKind::decode) batch_ = &batch;
}

void SlidingPart::commit() noexcept {
    AttentionPart::commit();
    if (batch_ == nullptr) return;
    for (const SequenceId s : batch_->touched) free_unseen_keys(s);
    batch_ = nullptr;
}

void SlidingPart::rollback() noexcept {
    AttentionPart::rollback();
    batch_ = nullptr;
}

void SlidingPart::free_unseen_keys(SequenceId s) noexcept {
    const int32_t n = table_.n_keys(s);
    if (n == 0) return;
    const int32_t n_freed = table_.first_key_from(s, oldest_kept(window_, position_of(s, n - 1)));
    if (n_freed == 0) return;
    freed(s) = hull(freed(s), {position_of(s, 0), position_of(s, n_freed - 1) + 1});
    table_.release_front(s, n_freed);
}

bool SlidingPart::keeps_visible_keys(std::optional<Position> last, PositionRange freed) const {
    return empty(freed) || (last && freed.end <= oldest_kept(window_, *last));
}

bool SlidingPart::can_remove(SequenceId sequence, PositionRange range) {
    AttentionPart::can_remove(sequence, range);
    const KeyRange keys = table_.keys(sequence, range);
    const int32_t n = table_.n_keys(sequence);
    if (keys.size() == 0) return true;  // only freed positions: later tokens see the same keys
    const int32_t last = keys.end < n ? n - 1 : keys.begin - 1;
    return keeps_visible_keys(last < 0 ? std::nullopt : std::optional(position_of(sequence, last)),
                              minus(freed_positions(sequence), range));
}

void SlidingPart::remove(SequenceId sequence, PositionRange range) noexcept {
    AttentionPart::remove(sequence, range);
    freed(sequence) = minus(freed(sequence), range);
}

bool SlidingPart::can_end_at(SequenceId sequence, Position next) const {
    const int32_t n = table_.first_key_from(sequence, next);
    return keeps_visible_keys(n == 0 ? std::nullopt : std::optional(position_of(sequence, n - 1)),
                              minus(freed_positions(sequence), {next, INT32_MAX}));
}

SlidingPart::Copy SlidingPart::plan_copy(SequenceId from, SequenceId to,
                                         PositionRange range) const {
    const KeyRange keys = table_.keys(from, range);
    const KeyRange replaced = table_.keys(to, range);
    const int32_t n = table_.n_keys(to);
    Copy copy{.range = range, .keys = keys, .replaced = replaced};
    copy.freed =
        hull(intersection(freed_positions(from), range), minus(freed_positions(to), range));
    if (replaced.end < n) {
        copy.last = position_of(to, n - 1);
    } else if (keys.size() > 0) {
        copy.last = position_of(from, keys.end - 1);
    } else if (replaced.begin > 0) {
        copy.last = position_of(to, replaced.begin - 1);
    } else {
        return copy;
    }
    // Keys that the result cannot see are not copied.
    const Position oldest = oldest_kept(window_, *copy.last);
    copy.range.begin = std::max(range.begin, std::min(oldest, range.end));
    copy.keys = table_.keys(from, copy.range);
    copy.n_dropped = table_.first_key_from(to, std::min(oldest, range.begin));
    copy.replaced = {replaced.begin - copy.n_dropped, replaced.end - copy.n_dropped};
    return copy;
}

size_t SlidingPart::check_copy(SequenceId from, SequenceId to, PositionRange range) {
    const Copy copy = plan_copy(from, to, range);
    if (!keeps_visible_keys(copy.last, copy.freed))
        throw UnsupportedError(text(
            "positions [", range.begin, ", ", range.end, ") of sequence ", from,
            " cannot be copied to sequence ", to, ": ",
            copy.last ? text("the token after position ", *copy.last, " would attend to")
                      : text("the copy would lack"),
            " keys up to position ", copy.freed.end - 1,
            ", which the sliding window has already freed; copy earlier, or use swa_full=True"));
    const int64_t free = n_ctx_ - (table_.n_keys(to) - copy.n_dropped) + copy.replaced.size();
    if (copy.keys.size() > free)
        throw CacheFull(
            text("copying sequence ", from, " to sequence ", to, " needs ", copy.keys.size(),
                 " cells, ", free, " of its n_ctx = ", n_ctx_, " are free"),
            copy.keys.size(), free);
    return reserve_copy(from, copy.keys, to, copy.replaced, copy.n_dropped);
}

void SlidingPart::copy(SequenceId from, SequenceId to, PositionRange range,
                       std::vector<RowMove>& moves) noexcept {
    const Copy copy = plan_copy(from, to, range);
    PositionRange dropped{0, 0};
    if (copy.n_dropped > 0) dropped = {position_of(to, 0), position_of(to, copy.n_dropped - 1) + 1};
    const KeyRange skipped = table_.keys(from, {range.begin, copy.range.begin});
    if (skipped.size() > 0)
        dropped = hull(dropped,
                       {position_of(from, skipped.begin), position_of(from, skipped.end - 1) + 1});
    table_.release_front(to, copy.n_dropped);
    copy_keys(from, copy.keys, to, copy.replaced, moves);
    freed(to) = hull(copy.freed, dropped);
}

size_t SlidingPart::check_reposition(SequenceId sequence, const Reposition& how) {
    const size_t n_moves = AttentionPart::check_reposition(sequence, how);
    table_.save(sequence);
    const PositionRange old = freed_positions(sequence);
    if (empty(old)) return n_moves;
    const PositionInterval now = repositioned(old, how);
    if (!beside_full_ && now.begin < 0)
        throw InvalidArgument(text("position ", old.begin, " of sequence ", sequence,
                                   " would become ", now.begin,
                                   "; positions must not be negative"));
    const Position first = how(position_of(sequence, 0));
    if (!beside_full_ && now.last > first)
        throw InvalidArgument(text("position ", old.end - 1, " of sequence ", sequence,
                                   " would become ", now.last, ", after the next token's position ",
                                   first));
    const Position last = how(position_of(sequence, table_.n_keys(sequence) - 1));
    if (now.last >= oldest_kept(window_, last))
        throw UnsupportedError(text("sequence ", sequence, " would attend to keys up to position ",
                                    now.last, ", which its window has freed; use swa_full=True ",
                                    "to keep all keys"));
    return n_moves;
}

void SlidingPart::reposition(SequenceId sequence, const Reposition& how,
                             std::vector<RowMove>& moves) noexcept {
    AttentionPart::reposition(sequence, how, moves);
    PositionRange& range = freed(sequence);
    if (!empty(range)) {
        const PositionInterval now = repositioned(range, how);
        range = normalized({static_cast<Position>(std::max<int64_t>(now.begin, 0)),
                            static_cast<Position>(now.last + 1)});
    }
    free_unseen_keys(sequence);
}

size_t SlidingPart::check_discard(SequenceId sequence, PositionRange range) {
    const size_t n_moves = AttentionPart::check_discard(sequence, range);
    table_.save(sequence);
    const KeyRange removed = table_.keys(sequence, range);
    const int32_t n = table_.n_keys(sequence);
    const int32_t last = removed.end < n ? n - 1 : removed.begin - 1;
    const PositionRange left = closed(freed_positions(sequence), range);
    if (!keeps_visible_keys(
            last < 0 ? std::nullopt : std::optional(closed(position_of(sequence, last), range)),
            left))
        throw UnsupportedError(text("without positions [", range.begin, ", ", range.end,
                                    "), sequence ", sequence, " would attend to keys up to ",
                                    "position ", left.end - 1, ", which its window has freed; ",
                                    "use swa_full=True to keep all keys"));
    return n_moves;
}

void SlidingPart::discard(SequenceId sequence, PositionRange range,
                          std::vector<RowMove>& moves) noexcept {
    AttentionPart::remove(sequence, range);
    AttentionPart::reposition(sequence, closing(range), moves);
    freed(sequence) = closed(freed(sequence), range);
    free_unseen_keys(sequence);
}

void SlidingPart::begin_transaction() {
    saved_freed_.push(freed_);
    try {
        AttentionPart::begin_transaction();
    } catch (...) {
        saved_freed_.pop();
        throw;
    }
}

void SlidingPart::commit_transaction() noexcept {
    AttentionPart::commit_transaction();
    saved_freed_.pop();
}

void SlidingPart::roll_back_transaction() noexcept {
    AttentionPart::roll_back_transaction();
    freed_.swap(saved_freed_.top());
    saved_freed_.pop();
}

void SlidingPart::release(SequenceId sequence) noexcept {
    AttentionPart::release(sequence);
    freed(sequence) = {0, 0};
}

void SlidingPart::check_restore(const PartState& state, std::span<const SequenceId> sequences,
                                bool whole, std::vector<StateRows>& rows) {
    AttentionPart::check_restore(state, sequences, whole, rows);
    for (const SequenceState& sequence : state.sequences) {
        std::optional<Position> last;
        if (!sequence.items.empty())
            last = state.positions[static_cast<size_t>(sequence.items.back()) *
                                   static_cast<size_t>(state.axes)];
        const PositionRange freed = sequence.unstored;
        if (freed.begin < 0 || freed.end < freed.begin || !keeps_visible_keys(last, freed))
            throw StateError(text("a sequence of the state lacks keys of its window: those of ",
                                  "positions [", freed.begin, ", ", freed.end, ") were freed"));
    }
}

void SlidingPart::restore(const PartState& state, std::span<const SequenceId> sequences,
                          std::span<StateRows> rows) noexcept {
    AttentionPart::restore(state, sequences, rows);
    for (size_t i = 0; i < sequences.size(); ++i) freed(sequences[i]) = state.sequences[i].unstored;
}

}  // namespace plait
