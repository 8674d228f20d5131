// An encoder's output, a row a token: written by encode(), read whole by every decode() of its
// sequence, until the next encode() of that sequence or the removal of everything.
//
// A new output is kept beside the one it is to replace until the call commits, hence room for one
// call more than all sequences can hold.
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

    // Decoding needs an encoder's output.
    void check_batch(StepKind kind, const PreparedBatch& batch) const override;
    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override;
    void rollback() noexcept override;
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    // Only the removal of the whole sequence, empty or not, removes its encoder's output.
    void remove(SequenceId sequence, PositionRange range) noexcept override;
    // A copy from the beginning takes the encoder's output along; another one does where there is
    // none yet.
    size_t check_copy(SequenceId from, SequenceId to, PositionRange range) override;
    size_t reserve_fork(SequenceId from, SequenceId to) override;
    void copy(SequenceId from, SequenceId to, PositionRange range,
              std::vector<RowMove>& moves) noexcept override;
    void release(SequenceId sequence) noexcept override { table_.release_all(sequence); }

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState& state, std::span<const SequenceId> sequences,
                 std::span<StateRows> rows) noexcept override;

private:
    // What a call encodes is kept here until it commits.
    SequenceId incoming(SequenceId s) const { return s + n_sequences_; }
    bool takes_output(SequenceId from, SequenceId to, PositionRange range) const;
    void take_rows(const PreparedBatch& batch, std::span<const Microbatch> microbatches);

    uint8_t group_;
    SequenceId n_sequences_;
    int64_t n_ctx_;
    RowTable table_;  // of twice as many sequences

    const PreparedBatch* batch_ = nullptr;  // of the step under way
    std::span<const Microbatch> microbatches_;
    StepKind kind_ = StepKind::decode;
    std::vector<int32_t> written_;  // [n_tokens] of an encode step
    std::vector<size_t> first_token_;
    std::vector<SequenceId> ids_;
    std::vector<Run> runs_;  // and the rest of the last view
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> seen_first_;
    std::vector<int32_t> seen_last_;
    std::vector<int32_t> row_of_item_;  // of the state being taken up
};

}  // namespace plait
