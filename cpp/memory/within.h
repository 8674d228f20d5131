// Attention among the tokens of one microbatch, as in encoders: stores nothing, so sequences must
// not be split.
#pragma once

#include <vector>

#include "memory/part.h"

namespace plait {

class WithinPart final : public Part {
public:
    // `encodes_only`: part of an encoder-decoder, whose decode steps do not use it.
    WithinPart(const MemoryOptions& options, bool encodes_only);

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override { microbatches_ = {}; }
    void rollback() noexcept override { microbatches_ = {}; }
    // The rows of a run are token indices of the microbatch.
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState&, std::span<const SequenceId>,
                 std::span<StateRows>) noexcept override {}

private:
    void check_whole(const PreparedBatch& batch, std::span<const Microbatch> microbatches);

    bool causal_;  // false for the encoder of an encoder-decoder, whatever the option says
    bool encodes_only_;
    int64_t n_ctx_;
    uint64_t n_placed_ = 0;                 // sequences placed, over all calls
    std::vector<uint64_t> placed_as_;       // [n_sequences] value of n_placed_ when last placed
    const PreparedBatch* batch_ = nullptr;  // of the current step
    std::span<const Microbatch> microbatches_;
    // Storage of the last view.
    std::vector<Run> runs_;
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> key_positions_;
};

}  // namespace plait
