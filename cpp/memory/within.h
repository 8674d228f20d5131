// Attention among the tokens of one microbatch, as in encoders. Nothing is stored, so batches must be
// split with SplitPolicy::whole_sequences.
#pragma once

#include <vector>

#include "memory/part.h"

namespace plait {

class WithinPart final : public Part {
public:
    // `encodes_only`: true in an encoder-decoder, where only encode steps use this part.
    WithinPart(const MemoryOptions& options, bool encodes_only);

    void place(StepKind kind, const PreparedBatch& batch,
               std::span<const Microbatch> microbatches) override;
    void commit() noexcept override { microbatches_ = {}; }
    void rollback() noexcept override { microbatches_ = {}; }
    // The rows of the view's runs are token indices in the microbatch.
    GroupView view(const GroupInfo& group, size_t microbatch) override;

    PartState describe(std::span<const SequenceId> sequences,
                       std::vector<StateRows>& rows) const override;
    void check_restore(const PartState& state, std::span<const SequenceId> sequences, bool whole,
                       std::vector<StateRows>& rows) override;
    void restore(const PartState&, std::span<const SequenceId>,
                 std::span<StateRows>) noexcept override {}

private:
    void check_lengths(std::span<const Microbatch> microbatches) const;

    bool causal_;  // always false in an encoder-decoder
    bool encodes_only_;
    int64_t n_ctx_;
    const PreparedBatch* batch_ = nullptr;  // of the current step
    std::span<const Microbatch> microbatches_;
    // The arrays of the last view.
    std::vector<Run> runs_;
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> key_positions_;
};

}  // namespace plait
