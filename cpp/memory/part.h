// A part of a memory: manages the rows of some groups. One file per kind of part.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/state.h"
#include "memory/step_memory.h"

namespace plait {

// Rows [from, from + n) of a group are copied to [to, to + n). Lists of moves are carried out in
// order.
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
    int64_t n_keys = 0;  // of all sequences
    int64_t n_runs = 0;
    int64_t fewest_runs = 0;  // if all rows were stored sequence after sequence
};

// position -> position / divisor + delta, for positions in `range`.
struct Reposition {
    PositionRange range;
    int32_t divisor = 1;
    int32_t delta = 0;
    Position operator()(Position p) const {
        return range.contains(p) ? static_cast<Position>(p / divisor + delta) : p;
    }
};

// Edits have two phases, so that a memory changes all of its parts or none: check_x() throws or
// reserves what x() needs and returns the max number of moves that x() appends; x() cannot fail.
//
// The defaults are those of a part that stores nothing.
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

    // A step; see StepMemory. check_batch() throws BatchError if the batch needs something that this
    // part does not have. rollback() does nothing if the part was not placed.
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
    // Reserves what copy() of any range from `from` to `to` needs if `to` is empty by then.
    virtual size_t reserve_fork(SequenceId, SequenceId) { return 0; }
    virtual size_t check_reposition(SequenceId, const Reposition&) { return 0; }
    virtual void reposition(SequenceId, const Reposition&, std::vector<RowMove>&) noexcept {}
    virtual void release(SequenceId) noexcept {}  // everything that the sequence holds

    // Whether [0, next) of the sequence can be kept or copied, so that it continues at `next`.
    virtual bool can_end_at(SequenceId, Position) const { return true; }
    virtual bool can_partial_remove() const { return true; }
    virtual bool can_shift() const { return true; }
    virtual bool has_shifts() const { return false; }
    virtual size_t n_shifts() const { return 0; }  // number that take_shifts() appends
    virtual void take_shifts(std::vector<KeyShift>&) noexcept {}

    // See Memory.
    virtual int64_t defragment(int64_t, std::vector<RowMove>&) { return 0; }
    virtual RunCount count_runs() const { return {}; }

    // Describes what `sequences` hold; appends the rows of each item to `rows`, one entry per group.
    virtual PartState describe(std::span<const SequenceId> sequences,
                               std::vector<StateRows>& rows) const = 0;
    // Position after the last token of a described sequence; nullopt if this part does not know.
    // Throws StateError if the description contradicts itself.
    virtual std::optional<Position> end_of(const PartState&, size_t /*sequence*/) const {
        return std::nullopt;
    }
    // Restores a description in two phases, like an edit. check_restore() appends the entries of
    // `rows` that restore() fills in; it throws StateError if the description contradicts itself or
    // does not fit this part, and CacheFull if there are too few rows. `whole`: everything is
    // replaced, rather than what `sequences` hold. Memory releases what is replaced in between.
    virtual void check_restore(const PartState& state, std::span<const SequenceId> sequences,
                               bool whole, std::vector<StateRows>& rows) = 0;
    virtual void restore(const PartState& state, std::span<const SequenceId> sequences,
                         std::span<StateRows> rows) noexcept = 0;

private:
    const PartKind& kind_;
};

// The parts of a memory, sorted by PartKind::code.
struct Parts {
    std::vector<std::unique_ptr<Part>> list;
    std::vector<Part*> of_group;  // by group of the layout

    void add(std::unique_ptr<Part> part, std::span<const uint8_t> groups) {
        for (const uint8_t group : groups) of_group.at(group) = part.get();
        list.push_back(std::move(part));
    }
};

}  // namespace plait
