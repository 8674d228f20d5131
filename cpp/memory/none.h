// Nothing: what encoders remember. A token sees tokens of its own piece, so sequences must run
// whole; no row is stored.
#pragma once

#include <vector>

#include "memory/part.h"

namespace plait {

class NonePart final : public Part {
public:
    // `encodes_only`: of an encoder-decoder; its decoder has nothing to do with this part.
    NonePart(const MemoryOptions& options, bool encodes_only)
        : causal_(options.causal && !encodes_only),
          encodes_only_(encodes_only),
          n_ctx_(options.n_ctx),
          piece_of_(static_cast<size_t>(options.n_seq_max)) {}

    std::optional<PositionBounds> positions(SequenceId) const override { return std::nullopt; }
    bool same_content(std::span<const SequenceId>) const override { return true; }
    int64_t n_cells() const override { return 0; }
    int64_t n_used() const override { return 0; }
    std::vector<Cell> cells() const override { return {}; }
    std::vector<int32_t> rows_of(SequenceId) const override { return {}; }

    void place(StepKind kind, const PreparedBatch& batch, std::span<const Piece> pieces) override;
    void commit() noexcept override { pieces_ = {}; }
    void rollback() noexcept override { pieces_ = {}; }
    // Keys are the tokens of the piece: a run's rows count these.
    AttentionView attention(const GroupInfo& group, size_t piece) override;

    bool can_remove(SequenceId, PositionRange) override { return true; }
    void remove(SequenceId, PositionRange) noexcept override {}
    size_t check_copy(SequenceId, SequenceId, PositionRange) override { return 0; }
    size_t reserve_fork(SequenceId, SequenceId) override { return 0; }
    void copy(SequenceId, SequenceId, PositionRange, std::vector<RowMove>&) noexcept override {}
    size_t check_reposition(SequenceId, const Reposition&) override { return 0; }
    void reposition(SequenceId, const Reposition&, std::vector<RowMove>&) noexcept override {}
    void release(SequenceId) noexcept override {}
    bool can_end_at(SequenceId, Position) const override { return true; }
    bool can_partial_remove() const override { return true; }
    bool can_shift() const override { return true; }

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    void check_adopt(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                     std::vector<StateRows>& rows) override;
    void adopt(const PartState&, std::span<const SequenceId>,
               std::span<StateRows>) noexcept override {}

private:
    void check_whole(const PreparedBatch& batch, std::span<const Piece> pieces);

    bool causal_;  // an encoder beside a decoder is not, whatever the decoder is
    bool encodes_only_;
    int64_t n_ctx_;
    uint64_t n_placed_ = 0;           // pieces, of all calls
    std::vector<uint64_t> piece_of_;  // [n_sequences] the last piece with tokens of the sequence
    const PreparedBatch* batch_ = nullptr;  // of the step under way
    std::span<const Piece> pieces_;
    std::vector<Run> runs_;  // and the rest of the last view
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> key_positions_;
};

}  // namespace plait
