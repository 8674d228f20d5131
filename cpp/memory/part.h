// One of the things that a memory is made of: what numbers its rows together. One file a variant;
// HybridMemory makes a memory of any mix of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "memory/memory.h"
#include "memory/state.h"

namespace plait {

// position -> position / divisor + delta, for positions in `range`.
struct Reposition {
    PositionRange range;
    int32_t divisor = 1;
    int32_t delta = 0;
    Position operator()(Position p) const {
        return range.contains(p) ? static_cast<Position>(p / divisor + delta) : p;
    }
};

// Edits come in halves, so that a memory changes all of its parts or none: check_x() refuses, or
// makes the room that x() needs and says how many moves that may list; x() then cannot fail.
class Part {
public:
    virtual ~Part() = default;

    virtual std::optional<PositionBounds> positions(SequenceId sequence) const = 0;
    virtual bool same_content(std::span<const SequenceId> sequences) const = 0;
    virtual int32_t n_streams() const { return 1; }
    virtual int64_t n_cells() const = 0;
    virtual int64_t n_used() const = 0;
    virtual std::vector<Cell> cells() const = 0;
    virtual std::vector<int32_t> rows_of(SequenceId sequence) const = 0;

    // BatchError where the batch asks for what this part does not have.
    virtual void check_batch(StepKind, const PreparedBatch&) const {}
    // A step; see Memory. rollback() of a step that was not placed does nothing.
    virtual void place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Piece> pieces) = 0;
    virtual void commit() noexcept = 0;
    virtual void rollback() noexcept = 0;
    virtual AttentionView attention(const GroupInfo&, size_t) {
        throw InternalError("a part without keys was asked for them");
    }
    virtual RecurrentView recurrent(size_t) {
        throw InternalError("a part without states was asked for them");
    }

    virtual bool can_remove(SequenceId sequence, PositionRange range) = 0;
    virtual void remove(SequenceId sequence, PositionRange range) noexcept = 0;
    virtual size_t check_copy(SequenceId from, SequenceId to, PositionRange range) = 0;
    virtual void copy(SequenceId from, SequenceId to, PositionRange range,
                      std::vector<RowMove>& moves) noexcept = 0;
    // Makes the room that any copy() to `to`, once it is released, needs.
    virtual size_t reserve_fork(SequenceId from, SequenceId to) = 0;
    virtual size_t check_reposition(SequenceId sequence, const Reposition& how) = 0;
    virtual void reposition(SequenceId sequence, const Reposition& how,
                            std::vector<RowMove>& moves) noexcept = 0;
    virtual void release(SequenceId sequence) noexcept = 0;  // all that it holds

    // Whether the sequence can be cut, or copied up to, so that it goes on at `next`.
    virtual bool can_end_at(SequenceId sequence, Position next) const = 0;
    virtual bool can_partial_remove() const = 0;
    virtual bool can_shift() const = 0;
    virtual bool has_shifts() const { return false; }
    virtual size_t n_shifts() const { return 0; }  // what take_shifts() will add
    virtual void take_shifts(std::vector<KeyShift>&) noexcept {}

    // See Memory.
    virtual int64_t defragment(int64_t, std::vector<RowMove>&) { return 0; }
    virtual RunCount count_runs() const { return {}; }

    // What the sequences hold, and in `rows` where, item by item.
    virtual PartState describe(std::span<const SequenceId> sequences,
                               std::vector<StateRows>& rows) const = 0;
    // Takes up a description in place of what `sequences`, one for each that is described, hold;
    // `whole`: of what all sequences hold. Checked as an edit is; StateError where it contradicts
    // itself or this part. check_adopt() adds what adopt() fills in.
    virtual void check_adopt(const PartState& state, std::span<const SequenceId> sequences,
                             bool whole, std::vector<StateRows>& rows) = 0;
    // Once what is to go has been released.
    virtual void adopt(const PartState& state, std::span<const SequenceId> sequences,
                       std::span<StateRows> rows) noexcept = 0;
};

}  // namespace plait
