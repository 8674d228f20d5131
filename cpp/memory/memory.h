// What a context remembers between steps. A Memory consists of parts, one or more for each kind of
// layer state (attention, sliding windows, recurrent states, an encoder's output); a model whose
// layers store nothing has a Memory without cells. It does the bookkeeping only: it numbers rows but
// never touches their bytes, and reports which rows the caller has to copy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "memory/lineage.h"
#include "memory/part.h"
#include "memory/step_memory.h"

namespace plait {

// Where a sequence can continue after a rewind: the first `next` tokens of `from` (the sequence
// itself or a fork of it) are still stored. Later tokens have to be decoded again.
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
    // Whether batches must be split with SplitPolicy::constant_coupling.
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

    // Edits change the bookkeeping at once and append the row copies they need to `moves`; the caller
    // carries these out before the next call. If an edit throws (UnsupportedError, CacheFull,
    // InvalidArgument) or returns false, nothing has changed. Sequence ids and ranges must be valid.
    [[nodiscard]] bool remove(SequenceId sequence, PositionRange range);
    void copy(SequenceId from, SequenceId to, PositionRange range, std::vector<RowMove>& moves);
    void keep(SequenceId sequence);
    void add(SequenceId sequence, PositionRange range, int32_t delta, std::vector<RowMove>& moves);
    void divide(SequenceId sequence, PositionRange range, int32_t divisor,
                std::vector<RowMove>& moves);
    void clear();
    bool can_shift() const;
    bool can_partial_remove() const;

    // The largest position up to `next` to which the sequence can be rewound: with remove() if
    // `from` is the sequence itself, otherwise with refork().
    RewindPoint rewind_point(SequenceId sequence, Position next) const;
    // An edit: replaces everything `to` holds by [0, point.next) of the fork.
    void refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves);

    // One round of defragmentation; after the last round, rows [0, n_used) of every stream are taken
    // and runs are long. Appends at most `max_moves` moves per group and returns the number of cells
    // they move; 0: done. In one round no row moves twice, and none is overwritten before it has
    // moved. Row contents and pending shifts stay the same. Defragmentation makes attention faster;
    // batches never need it to fit, since they take any free rows.
    int64_t defragment(int64_t max_moves, std::vector<RowMove>& moves);
    RunCount count_runs() const;

    // Describes one sequence or all, and the rows of each item. No shift may be pending.
    MemoryState describe(std::optional<SequenceId> sequence, std::vector<StateRows>& rows) const;
    // Restores a description: all sequences, replacing everything, or one sequence, replacing `to`
    // (by default the sequence it was saved from). `rows` receives the rows to write the bytes of
    // the items to; the caller writes them before the next call. On StateError or CacheFull nothing
    // has changed.
    void restore(const MemoryState& state, std::optional<SequenceId> to,
                 std::vector<StateRows>& rows);
    // Index in MemoryState::parts of the part that manages the group.
    uint32_t state_part(uint8_t group) const;

    std::vector<Cell> cells() const;
    // Rows of the group that hold the sequence, oldest first.
    std::vector<int32_t> rows_of(uint8_t group, SequenceId sequence) const {
        return part_of(group).rows_of(sequence);
    }

private:
    // An encoder starts every sequence anew.
    struct EmptySequences final : SequenceIndex {
        std::optional<PositionBounds> positions(SequenceId) const override { return {}; }
        bool same_content(std::span<const SequenceId>) const override { return true; }
    };

    // Reports positions and cells; null in a memory without parts.
    const Part* first() const { return parts_.list.empty() ? nullptr : parts_.list[0].get(); }
    Part& part_of(uint8_t group) const;
    bool can_end_at(SequenceId sequence, Position next) const;
    Position next(SequenceId sequence) const;
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
    EmptySequences empty_sequences_;
    bool in_step_ = false;
};

// Builds the memory that the specs and options ask for. Throws UnsupportedError or InvalidArgument
// with the reason if there is none.
std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options);

}  // namespace plait
