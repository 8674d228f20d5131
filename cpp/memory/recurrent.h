// States of recurrent layers (Mamba, Gu & Dao 2023, arXiv:2312.00752; RWKV): a row a sequence.
//
// A step never writes a row that was there before it: the first microbatch of a call reads the committed
// row and writes a fresh one, later microbatches go on in that, and commit() puts it in place of the
// committed one. So a call that fails leaves the old state, a copy is a second holder of the row,
// and both go on apart by themselves. Row 0 is all zeros: the state of a fresh sequence.
//
// Twice as many rows as sequences are enough. When sequences that went on together part within a
// call, each takes a fresh row and theirs is given back; but they shared their committed row, too.
#pragma once

#include <vector>

#include "memory/part.h"
#include "memory/row_pool.h"

namespace plait {

class RecurrentPart final : public Part {
public:
    RecurrentPart(uint8_t group, const MemoryOptions& options);

    std::optional<PositionBounds> positions(SequenceId sequence) const override;
    bool same_content(std::span<const SequenceId> sequences) const override;
    int64_t n_cells() const override { return std::ssize(sequences_); }
    int64_t n_used() const override { return rows_.n_rows() - rows_.n_free(); }
    // A state that sequences share is listed for each position that they have it at.
    std::vector<Cell> cells() const override;
    std::vector<int32_t> rows_of(SequenceId sequence) const override;

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    // A state has no parts: all goes, or is copied, or nothing.
    bool can_remove(SequenceId sequence, PositionRange range) override;
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    // Positions move; the state does not know them.
    size_t check_reposition(SequenceId sequence, const Reposition& how) override;
    void reposition(SequenceId sequence, const Reposition& how,
                    std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override;

    bool can_end_at(SequenceId sequence, Position next) const override;
    bool can_partial_remove() const override { return false; }
    bool can_shift() const override { return axes_ == 1; }

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    std::optional<Position> end_of(const PartState& state, size_t sequence) const override {
        return state.sequences[sequence].past.end;
    }
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

private:
    static constexpr int32_t kZeroRow = 0;
    static constexpr int32_t kNone = -1;

    struct Sequence {
        int32_t row = kZeroRow;    // kZeroRow: empty
        PositionRange past{0, 0};  // of the tokens that made the state
        int32_t fresh = kNone;     // row of the step under way; kNone: untouched by it
        Position begin = 0;        // `past` once it commits
        Position end = 0;
    };
    enum class Overlap { none, part, whole };

    Sequence& sequence(SequenceId s) { return sequences_[static_cast<size_t>(s)]; }
    const Sequence& sequence(SequenceId s) const { return sequences_[static_cast<size_t>(s)]; }
    Overlap overlap(SequenceId s, PositionRange range) const;
    int32_t& holders(int32_t row) { return holders_[static_cast<size_t>(row)]; }
    void hold(int32_t row) noexcept;
    void drop(int32_t row) noexcept;
    void advance(std::span<const SequenceId> ids) noexcept;

    uint8_t group_;
    int axes_;
    RowPool rows_;                  // all but row 0
    std::vector<int32_t> holders_;  // [n_rows] sequences that hold the row, committed or fresh
    std::vector<Sequence> sequences_;
    std::vector<SequenceId> touched_;  // by the step under way
    std::vector<int32_t>
        outdated_;                  // rows that the microbatch being placed reads for the last time
    uint64_t n_placed_ = 0;         // microbatches, of all calls
    std::vector<uint64_t> parted_;  // [n_rows] last microbatch in which a holder left the row
    std::vector<size_t> first_;     // [n_microbatches + 1] into reads_, writes_
    std::vector<int32_t> reads_;    // by microbatch and sequence
    std::vector<int32_t> writes_;
    std::vector<int32_t> row_of_item_;  // of the state being taken up
};

}  // namespace plait
