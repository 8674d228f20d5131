// The rows that the tokens of a step take in a row table, and the keys that they see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/split.h"
#include "memory/layout.h"
#include "memory/row_table.h"
#include "memory/step_memory.h"

namespace plait {

class RowPlacement {
public:
    // `n_ctx`: max keys of one sequence. The table must outlive this object.
    RowPlacement(RowTable& table, int64_t n_ctx) : table_(table), n_ctx_(n_ctx) {
        const size_t runs = table.reserved_runs() * static_cast<size_t>(table.n_sequences());
        runs_.reserve(runs);
        key_positions_.reserve(runs);
    }

    // Takes rows for all microbatches. If it throws, for example CacheFull with the numbers of rows
    // needed and free, the table is unchanged. The batch and its microbatches must stay alive until
    // commit() or rollback().
    void place(const PreparedBatch& batch, std::span<const Microbatch> microbatches);
    bool in_step() const { return !microbatches_.empty(); }
    void commit() noexcept;
    void rollback() noexcept;

    // Returns the view of a microbatch through the group's window, valid until the next call. If
    // `causal`, a token sees no key after its own; otherwise it also sees the later keys of its
    // microbatch.
    GroupView view(const GroupInfo& group, bool causal, size_t microbatch);

private:
    void check_capacity(const PreparedBatch& batch);
    void list_runs(std::span<const SequenceId> sequences, const int32_t* n_keys);
    void list_key_positions(std::span<const SequenceId> sequences, const int32_t* n_keys);

    RowTable& table_;
    int64_t n_ctx_;

    // The current step; n_tokens counts the tokens of all its microbatches.
    std::span<const Microbatch> microbatches_;
    bool both_directions_ = false;        // of the batch
    std::vector<size_t> first_token_;     // [n_microbatches + 1] into rows_, causal_end_
    std::vector<size_t> first_sequence_;  // [n_microbatches + 1] into n_keys_
    std::vector<int32_t> rows_;           // [n_tokens]
    std::vector<int32_t> causal_end_;     // [n_tokens] one past the index of the token's own key
    std::vector<int32_t> n_keys_;  // by microbatch and its sequences: keys including the microbatch
    std::vector<int32_t> n_added_;  // [n_sequences] keys that the step adds

    // The arrays of the last view.
    std::vector<Run> runs_;
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> key_positions_;
    std::vector<int32_t> key_begin_;
};

}  // namespace plait
