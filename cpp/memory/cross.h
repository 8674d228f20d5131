// The part for the output of an encoder. There is one row per encoder token. encode() writes the
// rows of a sequence; each decode() of the sequence reads all of them, until the next encode()
// replaces them or the whole sequence is removed.
//
// The rows that a call replaces are kept until it commits. The capacity therefore exceeds the rows
// that all sequences can hold by n_batch.
#pragma once

#include <vector>

#include "memory/part.h"
#include "memory/row_table.h"

namespace plait {

class CrossPart final : public Part {
public:
    CrossPart(const MemoryLayout& layout, uint8_t group, const MemoryOptions& options);

    bool same_content(std::span<const SequenceId> sequences) const override {
        return table_.same_content(sequences);
    }
    int64_t n_cells() const override { return table_.n_rows(); }
    int64_t n_used() const override { return table_.n_rows() - table_.n_free(); }
    std::vector<int32_t> rows_of(SequenceId sequence) const override;

    // Throws BatchError if a sequence of a decode step has no encoder output.
    void check_batch(StepKind kind, const PreparedBatch& batch) const override;
    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    // The encoder output is removed only if `range` is the whole sequence.
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    // A copy includes the encoder output if it starts at position 0 or `to` has none; see
    // copies_output().
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    size_t reserve_fork(SequenceId from, SequenceId to) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override { table_.release_all(sequence); }

    void begin_transaction() override { table_.begin_transaction(); }
    void commit_transaction() noexcept override { table_.commit_transaction(); }
    void roll_back_transaction() noexcept override { table_.roll_back_transaction(); }

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

private:
    // The sequence of table_ that holds the new output of `s` until the call commits.
    SequenceId incoming(SequenceId s) const { return s + n_sequences_; }
    bool copies_output(SequenceId from, SequenceId to, PositionRange range) const;
    void place_output(const PreparedBatch& batch, std::span<const Microbatch> microbatches);

    uint8_t group_;
    SequenceId n_sequences_;
    int64_t n_ctx_;
    RowTable table_;  // has 2 * n_seq_max sequences; see incoming()

    // The current step.
    const PreparedBatch* batch_ = nullptr;
    std::span<const Microbatch> microbatches_;
    StepKind kind_ = StepKind::decode;
    std::vector<int32_t> write_rows_;  // [n_tokens] of an encode step
    std::vector<size_t> first_token_;  // [n_microbatches + 1] into write_rows_
    std::vector<SequenceId> ids_;      // scratch of place_output()
    // The arrays of the last view.
    std::vector<Run> runs_;
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> row_of_item_;  // [n_items] of the state being restored; -1: not yet placed
};

}  // namespace plait
