// Memory of models whose layers all attend: keys and values, a row a token.
//
// "unified": all sequences share one pool of rows, and copies share rows by reference.
// "streams": the same table divided by sequence. Rows [s * n_ctx, (s + 1) * n_ctx) belong to
// sequence s, so sequences never compete for room, and a copy moves bytes.
//
// Layers with a window keep every row and look at the last of them (swa_full).
#pragma once

#include <vector>

#include "memory/memory.h"
#include "memory/row_placement.h"
#include "memory/row_table.h"

namespace plait {

// Storage for `n_rows` rows of every attention layer. Layers that see and ask for the same share a
// group, whatever their head counts and sizes.
MemoryLayout attention_layout(const MemorySpecs& specs, const MemoryOptions& options,
                              int64_t n_rows);

class AttentionMemory final : public Memory {
public:
    // `options.n_cells` must be set; the layout has as many rows.
    AttentionMemory(MemoryLayout layout, const MemoryOptions& options);

    std::optional<PositionBounds> positions(SequenceId sequence) const override;
    bool same_content(std::span<const SequenceId> sequences) const override;

    std::string_view kind() const override { return kind_; }
    const MemoryLayout& layout() const override { return layout_; }
    int32_t n_streams() const override { return table_.n_pools(); }
    int32_t n_sequences() const override { return table_.n_sequences(); }
    int64_t n_cells() const override { return table_.n_rows(); }
    int64_t n_used() const override { return table_.n_rows() - table_.n_free(); }

    void place(const PreparedBatch& batch, std::span<const Piece> pieces) override;
    AttentionView attention(uint8_t group, size_t piece) override;
    RecurrentView recurrent(uint8_t group, size_t piece) override;
    void commit() noexcept override { step_.commit(); }
    void rollback() noexcept override { step_.rollback(); }

    [[nodiscard]] bool remove(SequenceId sequence, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) override;
    void keep(SequenceId sequence) override;
    void add(SequenceId sequence, PositionRange range, int32_t delta,
             std::vector<RowMove>& moves) override;
    void divide(SequenceId sequence, PositionRange range, int32_t divisor,
                std::vector<RowMove>& moves) override;
    void clear() override;
    bool can_shift() const override { return options_.axes == 1; }
    bool can_partial_remove() const override { return true; }

    bool has_shifts() const override { return table_.has_shifts(); }
    void take_shifts(std::vector<KeyShift>& shifts) override;

    std::vector<Cell> cells() const override;
    std::vector<int32_t> rows_of(uint8_t group, SequenceId sequence) const override;

private:
    void reposition(SequenceId sequence, PositionRange range, int32_t divisor, int32_t delta,
                    std::vector<RowMove>& moves);
    void reserve_moves(std::vector<RowMove>& moves, int32_t rows) const;
    void hand_over_moves(std::vector<RowMove>& moves) noexcept;

    MemoryLayout layout_;
    MemoryOptions options_;
    std::string_view kind_;
    std::vector<uint8_t> rotated_groups_;  // groups with a layer whose keys are rotated
    bool shifts_magnify_;                  // see AttentionSpec
    std::vector<SequenceId> shifted_;      // sequences with shifts pending, if these magnify
    RowTable table_;                       // one: in every group a token has the same row
    RowPlacement step_;
    std::vector<RowMove> table_moves_;  // of the edit under way
};

}  // namespace plait
