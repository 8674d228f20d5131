// The base class of the parts of a memory. A part manages the rows of some groups of layers; each
// kind of part has its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/state.h"
#include "memory/step_memory.h"

namespace plait {

// A copy of rows [from, from + n) of a group to [to, to + n). Moves are carried out in the order in
// which they are listed.
struct RowMove {
    uint8_t group = 0;
    int32_t from = 0;
    int32_t to = 0;
    int32_t n = 1;
    friend bool operator==(const RowMove&, const RowMove&) = default;
};

// One used row, as KVCache.cells() reports it.
struct Cell {
    int32_t row = 0;
    int32_t stream = 0;
    Position position[4] = {0, 0, 0, 0};
    int32_t shift = 0;  // rotation not yet applied
    int32_t ordinal = 0;
    std::vector<SequenceId> sequences;  // ascending
};

// Counts the runs that attention reads; `n_keys / n_runs` is their average length.
struct RunCount {
    int64_t n_keys = 0;    // of all sequences
    int64_t n_runs = 0;    // of all sequences
    int64_t min_runs = 0;  // value of n_runs if the rows were sorted by sequence and key
};

// Changes each position p in `range` to p / divisor + delta.
struct Reposition {
    PositionRange range;
    int32_t divisor = 1;
    int32_t delta = 0;
    Position operator()(Position p) const { return static_cast<Position>(unchecked(p)); }
    // As a number that may not be a Position.
    int64_t unchecked(Position p) const {
        return range.contains(p) ? int64_t{p} / divisor + delta : int64_t{p};
    }
};

// Moves the positions after a removed range back, so that they continue where it began.
inline Reposition closing(PositionRange gap) {
    return {.range = {.begin = gap.end}, .delta = gap.begin - gap.end};
}

// Edits have two phases, so that either all parts of a memory change or none. First, check_x()
// throws if the edit is not possible; otherwise it allocates what x() needs and returns the max
// number of moves that x() appends. Then x() makes the change and cannot fail.
//
// The default implementations are for a part that stores nothing.
class Part {
public:
    explicit Part(const PartKind& kind) : kind_(kind) {}
    virtual ~Part() = default;
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    const PartKind& kind() const { return kind_; }

    virtual std::optional<PositionBounds> positions(SequenceId) const { return std::nullopt; }
    virtual bool same_content(std::span<const SequenceId>) const { return true; }
    virtual int32_t n_streams() const { return 1; }
    virtual int64_t n_cells() const { return 0; }
    virtual int64_t n_used() const { return 0; }
    virtual std::vector<Cell> cells() const { return {}; }
    virtual std::vector<int32_t> rows_of(SequenceId) const { return {}; }
    // Returns the position of each row of rows_of(), on the first axis; empty if rows have none.
    virtual std::vector<Position> positions_of(SequenceId) const { return {}; }

    // A step; see StepMemory. check_batch() throws BatchError if the batch needs contents that this
    // part lacks. rollback() without a preceding place() has no effect.
    virtual void check_batch(StepKind, const PreparedBatch&) const {}
    virtual void place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Microbatch> microbatches) = 0;
    virtual GroupView view(const GroupInfo& group, size_t microbatch) = 0;
    virtual void commit() noexcept = 0;
    virtual void rollback() noexcept = 0;

    virtual bool can_remove(SequenceId, PositionRange) { return true; }
    virtual void remove(SequenceId, PositionRange) noexcept {}
    virtual size_t check_copy(SequenceId, SequenceId, PositionRange) { return 0; }
    virtual void copy(SequenceId, SequenceId, PositionRange, std::vector<RowMove>&) noexcept {}
    // Gives the sequence rows of its own for `keys`, ascending indices of rows_of(), so that their
    // contents can be replaced. own() replaces each key by its row.
    virtual size_t check_own(SequenceId, std::span<const int32_t>) { return 0; }
    virtual void own(SequenceId, std::span<int32_t>, std::vector<RowMove>&) noexcept {}
    // Allocates what copy() needs for any range of `from`, given that `to` is empty by then.
    // Returns the max number of moves.
    virtual size_t reserve_fork(SequenceId, SequenceId) { return 0; }
    virtual size_t check_reposition(SequenceId, const Reposition&) { return 0; }
    virtual void reposition(SequenceId, const Reposition&, std::vector<RowMove>&) noexcept {}
    // Removes a range for which can_remove() is true, and closes the gap.
    virtual size_t check_discard(SequenceId sequence, PositionRange range) {
        return check_reposition(sequence, closing(range));
    }
    virtual void discard(SequenceId sequence, PositionRange range,
                         std::vector<RowMove>& moves) noexcept {
        remove(sequence, range);
        reposition(sequence, closing(range), moves);
    }
    virtual void release(SequenceId) noexcept {}  // removes everything that the sequence holds

    // Returns true if the sequence can be truncated to positions [0, next), or copied up to there,
    // and then continue at `next`.
    virtual bool can_end_at(SequenceId, Position) const { return true; }
    virtual bool can_partial_remove() const { return true; }
    virtual bool can_shift() const { return true; }
    virtual bool has_shifts() const { return false; }
    virtual size_t n_shifts() const { return 0; }  // number of shifts that take_shifts() appends
    virtual void take_shifts(std::vector<KeyShift>&) noexcept {}

    // See Memory::begin_transaction(). begin_transaction() changes nothing if it throws.
    virtual void begin_transaction() {}
    virtual void commit_transaction() noexcept {}
    virtual void roll_back_transaction() noexcept {}
    // Gives sequences copies of rows with pending shifts that a transaction keeps.
    virtual size_t check_replace_kept_shifts() { return 0; }
    virtual void replace_kept_shifts(std::vector<RowMove>&) noexcept {}

    // See Memory::defragment() and Memory::count_runs().
    virtual int64_t defragment(int64_t, std::vector<RowMove>&) { return 0; }
    virtual RunCount count_runs() const { return {}; }

    // Describes what `sequences` hold, and appends the rows of the items to `rows`, with one entry
    // per group. The caller fills in PartState::kind and StateRows::part.
    virtual PartState describe(std::span<const SequenceId> sequences,
                               std::vector<StateRows>& rows) const = 0;
    // Returns the position after the last token of a described sequence, or nullopt if this part
    // does not record it. Throws StateError if the description is inconsistent.
    virtual std::optional<Position> end_of(const PartState&, size_t /*sequence*/) const {
        return std::nullopt;
    }
    // Restores a description in two phases, like an edit. check_restore() appends one entry per
    // group to `rows`, with capacity for the items and rows that restore() adds. It throws
    // StateError if the description is inconsistent or does not match this part, and CacheFull if
    // there are too few rows. If `whole` is true, the contents of all sequences are replaced,
    // otherwise those of `sequences`. Memory releases the replaced contents between the two phases.
    virtual void check_restore(const PartState& state, std::span<const SequenceId> sequences,
                               bool whole, std::vector<StateRows>& rows) = 0;
    virtual void restore(const PartState& state, std::span<const SequenceId> sequences,
                         std::span<StateRows> rows) noexcept = 0;

private:
    const PartKind& kind_;
};

// The parts of a memory, in ascending order of PartKind::code.
struct Parts {
    std::vector<std::unique_ptr<Part>> list;
    std::vector<Part*> of_group;  // [n_groups of the layout]

    void add(std::unique_ptr<Part> part, std::span<const uint8_t> groups) {
        for (const uint8_t group : groups) of_group.at(group) = part.get();
        list.push_back(std::move(part));
    }
};

}  // namespace plait
