// The part for the states of recurrent layers (Mamba, Gu & Dao 2023, arXiv:2312.00752; RWKV). There
// is one row per sequence.
//
// States are copy-on-write. The first microbatch of a call reads a sequence's committed row and
// writes a new row, which the later microbatches update; commit() then replaces the committed row
// by the new one. Hence rollback() restores the old state, and a copy of a sequence shares its row
// until one of the two continues. Row 0 is all zeros, the state of an empty sequence.
//
// Two rows per sequence are enough. When k >= 2 sequences that share a new row diverge within a
// call, each takes a row of its own before the shared one is freed; but since they also share a
// committed row, they hold at most k + 2 <= 2 k rows. A third row per sequence lets a transaction
// keep the states that all sequences had at its beginning. Several nested ones need free sequences.
#pragma once

#include <vector>

#include "memory/part.h"
#include "memory/row_pool.h"
#include "memory/saved.h"

namespace plait {

class RecurrentPart final : public Part {
public:
    RecurrentPart(uint8_t group, const MemoryOptions& options);

    std::optional<PositionBounds> positions(SequenceId sequence) const override;
    bool same_content(std::span<const SequenceId> sequences) const override;
    int64_t n_cells() const override { return std::ssize(sequences_); }
    // Rows that a transaction keeps count, but not as more than all cells: there are more rows.
    int64_t n_used() const override;
    // Sequences that share a row but end at different positions have separate cells.
    std::vector<Cell> cells() const override;
    std::vector<int32_t> rows_of(SequenceId sequence) const override;

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    // A state can only be removed or copied as a whole.
    bool can_remove(SequenceId sequence, PositionRange range) override;
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    // Changes positions; the contents of a state do not depend on them.
    size_t check_reposition(SequenceId sequence, const Reposition& how) override;
    void reposition(SequenceId sequence, const Reposition& how,
                    std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override;

    bool can_end_at(SequenceId sequence, Position next) const override;
    bool can_partial_remove() const override { return false; }
    bool can_shift() const override { return axes_ == 1; }

    void begin_transaction() override;
    void commit_transaction() noexcept override;
    void roll_back_transaction() noexcept override;

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    std::optional<Position> end_of(const PartState& state, size_t sequence) const override {
        return state.sequences[sequence].unstored.end;
    }
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

private:
    static constexpr int32_t kZeroRow = 0;
    static constexpr int32_t kNone = -1;

    struct Sequence {
        int32_t row = kZeroRow;         // kZeroRow: empty
        PositionRange positions{0, 0};  // of the tokens from which the state was computed
        int32_t new_row = kNone;        // row that the current step writes; kNone: none
        PositionRange new_positions{0, 0};
    };
    // The share of a sequence's positions that a range contains.
    enum class Overlap { none, part, whole };

    Sequence& sequence(SequenceId s) { return sequences_[static_cast<size_t>(s)]; }
    const Sequence& sequence(SequenceId s) const { return sequences_[static_cast<size_t>(s)]; }
    Overlap overlap(SequenceId s, PositionRange range) const;
    int32_t& ref_count(int32_t row) { return ref_counts_[static_cast<size_t>(row)]; }
    void add_reference(int32_t row) noexcept;
    void drop_reference(int32_t row) noexcept;
    bool advance(std::span<const SequenceId> ids) noexcept;
    void drop_stale_rows() noexcept;
    int32_t n_kept() const;

    uint8_t group_;
    int axes_;
    RowPool rows_;                     // all rows except row 0
    std::vector<int32_t> ref_counts_;  // [n_rows] sequences whose `row` or `new_row` it is, and
                                       // saved sequences
    std::vector<Sequence> sequences_;
    Saved<std::vector<Sequence>> saved_;  // each holds a reference to its row
    std::vector<SequenceId> touched_;     // sequences of the current step
    std::vector<int32_t> stale_rows_;     // new rows last read by the microbatch being placed
    uint64_t n_placed_ = 0;               // microbatches placed, over all calls
    // [n_rows] value of n_placed_ when the row was last replaced by a new row
    std::vector<uint64_t> last_copy_from_;
    // Of the current step.
    std::vector<size_t> first_;   // [n_microbatches + 1] into reads_, writes_
    std::vector<int32_t> reads_;  // by microbatch and its sequences
    std::vector<int32_t> writes_;
    std::vector<int32_t> row_of_item_;  // [n_items] of the state being restored; kNone: not yet
};

}  // namespace plait
