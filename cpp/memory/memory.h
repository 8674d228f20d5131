// The contents of a context's sequences: attention caches, recurrent states, encoder outputs. A
// Memory consists of parts, each of which manages one kind of storage; a model whose layers store
// nothing has a Memory without cells. Memory only keeps track of row numbers. It never accesses the
// bytes of rows; instead it reports which rows the caller has to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "memory/lineage.h"
#include "memory/part.h"
#include "memory/saved.h"
#include "memory/step_memory.h"

namespace plait {

// Where a sequence can continue after a rewind. Positions [0, next) of `from`, which is the
// sequence itself or a fork of it, are still stored; later tokens have to be decoded again.
struct RewindPoint {
    Position next = 0;
    SequenceId from = 0;
    friend bool operator==(const RewindPoint&, const RewindPoint&) = default;
};

class Memory final : public SequenceIndex, public StepMemory {
public:
    Memory(MemoryLayout layout, const MemoryOptions& options, Parts parts);

    std::optional<PositionBounds> positions(SequenceId sequence) const override;
    bool same_content(std::span<const SequenceId> sequences) const override;

    // "unified", "streams", "sliding", "recurrent", "hybrid", "cross" or "none".
    std::string_view kind() const { return kind_; }
    int32_t n_streams() const;
    int32_t n_sequences() const { return n_sequences_; }  // n_seq_max
    int64_t n_cells() const;
    int64_t n_used() const;
    // True if batches must be split with SplitPolicy::constant_coupling.
    bool needs_constant_coupling() const { return needs_constant_coupling_; }

    const MemoryLayout& layout() const override { return layout_; }
    const SequenceIndex& sequences(StepKind kind) const override;
    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    GroupView view(uint8_t group, size_t microbatch) override;
    void commit() noexcept override;
    void rollback() noexcept override;
    bool has_shifts() const override;
    void take_shifts(std::vector<KeyShift>& shifts) override;

    // Edits change row numbers immediately and append the row copies that they need to `moves`; the
    // caller carries these out before the next call. If an edit throws (UnsupportedError,
    // CacheFull, InvalidArgument) or returns false, nothing has changed. Sequence ids and ranges
    // must be valid.
    [[nodiscard]] bool remove(SequenceId sequence, PositionRange range);
    void copy(SequenceId from, SequenceId to, PositionRange range, std::vector<RowMove>& moves);
    void keep(SequenceId sequence);
    void add(SequenceId sequence, PositionRange range, int32_t delta, std::vector<RowMove>& moves);
    void divide(SequenceId sequence, PositionRange range, int32_t divisor,
                std::vector<RowMove>& moves);
    // Removes a range and moves the later positions back to close the gap.
    void discard(SequenceId sequence, PositionRange range, std::vector<RowMove>& moves);
    void clear();
    // Gives the sequence rows of its own in the part of `group` for `keys`, ascending indices of
    // rows_of(), so that the caller can replace their contents. Replaces each key by its row.
    void own(uint8_t group, SequenceId sequence, std::span<int32_t> keys,
             std::vector<RowMove>& moves);
    bool can_shift() const;
    bool can_partial_remove() const;

    // Transactions. They nest, and contain any number of whole steps and edits. After a rollback,
    // sequences, rows, their contents and pending shifts are as at the beginning. Until the end of
    // a transaction, the rows that it may restore are kept and count as used; edits copy them
    // instead of changing them, and nothing is defragmented. If begin_transaction() throws
    // std::bad_alloc, nothing has changed.
    void begin_transaction();
    void commit_transaction() noexcept;
    void roll_back_transaction() noexcept;
    size_t n_transactions() const { return saved_lineages_.size(); }
    // An edit: prepares take_shifts() in a transaction. Rows that a transaction keeps must not be
    // rotated, so sequences get copies of them. Throws CacheFull if there is no room.
    void replace_kept_shifts(std::vector<RowMove>& moves);
    // Throws CacheFull if replace_kept_shifts() would. During a step, its rows count as used.
    void check_kept_shifts();

    // Returns the largest position up to `next` to which the sequence can be rewound. If `from` is
    // the sequence itself, remove() does so, otherwise refork().
    RewindPoint rewind_point(SequenceId sequence, Position next) const;
    // An edit: replaces everything that `to` holds by positions [0, point.next) of point.from.
    void refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves);

    // Performs one round of defragmentation. Appends at most `max_moves` moves per group and
    // returns the number of cells that they move; 0 means that no round is left. After the last
    // round, rows [0, n_used) of every stream are in use and runs are long. In one round no row
    // moves twice, and no row is overwritten before it has moved. Row contents and pending shifts
    // stay the same. Defragmentation makes attention faster; it is never needed to make a batch
    // fit, since a batch can use any free rows.
    int64_t defragment(int64_t max_moves, std::vector<RowMove>& moves);
    RunCount count_runs() const;

    // Describes one sequence, or all if nullopt, and lists the rows of each item. No shift may be
    // pending.
    MemoryState describe(std::optional<SequenceId> sequence, std::vector<StateRows>& rows) const;
    // Restores a description. That of a whole memory replaces the contents of all sequences; that
    // of one sequence replaces the contents of `to`, by default the sequence that was described.
    // `rows` receives the rows of each item; the caller writes the items' bytes to them before the
    // next call. If StateError or CacheFull is thrown, nothing has changed.
    void restore(const MemoryState& state, std::optional<SequenceId> to,
                 std::vector<StateRows>& rows);
    // Returns the index in MemoryState::parts of the part that manages the group.
    uint32_t state_part(uint8_t group) const;

    std::vector<Cell> cells() const;
    // Returns 1 + the largest position of the sequence; 0 if it is empty.
    Position next(SequenceId sequence) const;
    // Returns true if any part stores something of the sequence.
    bool holds(SequenceId sequence) const;
    std::vector<SequenceId> held_sequences() const;  // those that holds() is true for
    // Returns the rows of the group that the sequence holds, oldest first.
    std::vector<int32_t> rows_of(uint8_t group, SequenceId sequence) const {
        return part_of(group).rows_of(sequence);
    }
    // Returns the position of each of these rows, on the first axis.
    std::vector<Position> positions_of(uint8_t group, SequenceId sequence) const {
        return part_of(group).positions_of(sequence);
    }

private:
    // An encode step does not continue stored sequences.
    struct EmptySequences final : SequenceIndex {
        std::optional<PositionBounds> positions(SequenceId) const override { return {}; }
        bool same_content(std::span<const SequenceId>) const override { return true; }
    };

    // The part that reports positions and cells; null in a memory without parts.
    const Part* first() const { return parts_.list.empty() ? nullptr : parts_.list[0].get(); }
    Part& part_of(uint8_t group) const;
    bool can_end_at(SequenceId sequence, Position next) const;
    void release(SequenceId sequence) noexcept;
    void cut_lineage(SequenceId sequence, Position begin) noexcept;
    void reposition(SequenceId sequence, const Reposition& how, std::vector<RowMove>& moves);
    void check_state(const MemoryState& state) const;
    std::vector<SequenceId> targets(const MemoryState& state, std::optional<SequenceId> to) const;

    std::string_view kind_;
    MemoryLayout layout_;
    int32_t n_sequences_;
    bool needs_constant_coupling_;
    Parts parts_;
    Lineage lineage_;
    Saved<Lineage> saved_lineages_;  // one for each open transaction
    EmptySequences empty_sequences_;
    bool in_step_ = false;
};

// Returns the layout of the memory that make_memory() would build, without allocating it. Throws
// the same errors.
MemoryLayout layout_of(const MemorySpecs& specs, const MemoryOptions& options);

// Builds a memory from the specs of a model and the options of a context. Throws UnsupportedError
// or InvalidArgument if the options are out of range or do not work with the specs.
std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options);

}  // namespace plait
