// The part for attention layers that keep all keys: those without a window, or with a window whose
// rows are not freed. There is one row per token, kept until it is removed.
//
// With kv="unified", all sequences share one pool of rows, and copies of sequences share rows by
// reference. With kv="streams", each sequence has a pool: sequences do not compete for rows, and
// copies of sequences copy rows.
#pragma once

#include <string_view>
#include <vector>

#include "memory/compaction.h"
#include "memory/part.h"
#include "memory/row_placement.h"
#include "memory/row_table.h"

namespace plait {

class AttentionPart : public Part {
public:
    // A token has the same row number in all of `groups`.
    AttentionPart(const MemoryLayout& layout, std::vector<uint8_t> groups,
                  const MemoryOptions& options);

    std::optional<PositionBounds> positions(SequenceId s) const override {
        return table_.bounds(s);
    }
    bool same_content(std::span<const SequenceId> sequences) const override {
        return table_.same_content(sequences);
    }
    int32_t n_streams() const override { return table_.n_pools(); }
    int64_t n_cells() const override { return table_.n_rows(); }
    int64_t n_used() const override { return table_.n_rows() - table_.n_free(); }
    std::vector<Cell> cells() const override;
    std::vector<int32_t> rows_of(SequenceId sequence) const override;
    std::vector<Position> positions_of(SequenceId sequence) const override;

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override { placement_.commit(); }
    void rollback() noexcept override { placement_.rollback(); }
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    bool can_remove(SequenceId sequence, PositionRange range) override;
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    size_t check_own(SequenceId sequence, std::span<const int32_t> keys) override;
    void own(SequenceId sequence, std::span<int32_t> keys,
             std::vector<RowMove>& moves) noexcept override;
    size_t reserve_fork(SequenceId from, SequenceId to) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    size_t check_reposition(SequenceId sequence, const Reposition& how) override;
    void reposition(SequenceId sequence, const Reposition& how,
                    std::vector<RowMove>& moves) noexcept override;
    size_t check_discard(SequenceId sequence, PositionRange range) override;
    void release(SequenceId sequence) noexcept override { table_.release_all(sequence); }

    bool can_end_at(SequenceId, Position) const override { return true; }
    bool can_partial_remove() const override { return true; }
    bool can_shift() const override { return table_.axes() == 1; }
    bool has_shifts() const override { return table_.has_shifts(); }
    size_t n_shifts() const override;
    void take_shifts(std::vector<KeyShift>& shifts) noexcept override;

    void begin_transaction() override { table_.begin_transaction(); }
    void commit_transaction() noexcept override { table_.commit_transaction(); }
    void roll_back_transaction() noexcept override { table_.roll_back_transaction(); }
    size_t check_replace_kept_shifts() override {
        return reserve_moves(table_.reserve_kept_shifts());
    }
    void replace_kept_shifts(std::vector<RowMove>& moves) noexcept override {
        table_.replace_kept_shifts(table_moves_);
        append_moves(moves);
    }

    int64_t defragment(int64_t max_moves, std::vector<RowMove>& moves) override;
    RunCount count_runs() const override;

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    std::optional<Position> end_of(const PartState& state, size_t sequence) const override;
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

protected:
    // The positions whose keys were freed by a window.
    virtual PositionRange freed_positions(SequenceId) const { return {0, 0}; }

    // Prepares unsharing `needed` rows, which are then to be changed as `what` says, after `n_freed`
    // rows have been freed. Throws CacheFull if there are too few free rows. Returns the max moves.
    size_t reserve_unshare(SequenceId sequence, int32_t needed, std::string_view what,
                           int32_t n_freed = 0);
    // Allocates memory for moves of `rows` rows per group; returns the max moves of all groups.
    size_t reserve_moves(int32_t rows);
    // Prepares copy_keys(). `replaced` are indices after the first `n_dropped` keys of `to` have
    // been removed. Throws CacheFull if the stream of `to` has too few rows. Returns the max moves.
    size_t reserve_copy(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                        int32_t n_dropped = 0);
    void copy_keys(SequenceId from, KeyRange keys, SequenceId to, KeyRange replaced,
                   std::vector<RowMove>& moves) noexcept;

    RowTable table_;

private:
    void append_moves(std::vector<RowMove>& moves) noexcept;
    int32_t check_sequence(const PartState& state, const SequenceState& sequence,
                           int32_t n_known) const;

    std::vector<uint8_t> groups_;
    std::vector<uint8_t> rotated_groups_;  // those with rotated keys
    Window window_;                        // for saved states; full if there are several groups
    int64_t n_ctx_;
    bool causal_;
    RowPlacement placement_;
    Compaction compaction_;
    std::vector<RowMove> table_moves_;  // of the current edit
    std::vector<int32_t> row_of_item_;  // [n_items] of the state being restored; -1: not yet placed
};

}  // namespace plait
