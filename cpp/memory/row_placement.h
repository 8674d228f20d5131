// The tokens of one call, placed in a row table: where each goes and what it may see.
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
    // `n_ctx`: keys that one sequence may hold. The table must outlive the placement.
    RowPlacement(RowTable& table, int64_t n_ctx) : table_(table), n_ctx_(n_ctx) {
        const size_t runs = table.runs_ahead() * static_cast<size_t>(table.n_sequences());
        runs_.reserve(runs);
        key_positions_.reserve(runs);
    }

    // Rows for every microbatch, or an exception and the table as it was: CacheFull says how many rows
    // were needed and free. Batch and microbatches must live until commit() or rollback().
    void place(const PreparedBatch& batch, std::span<const Microbatch> microbatches);
    bool under_way() const { return !microbatches_.empty(); }
    void commit() noexcept;
    void rollback() noexcept;

    // What a microbatch sees through a group's window, valid until the next call. `causal`: a token sees
    // no key after its own; otherwise it sees those of its own microbatch, too.
    GroupView view(const GroupInfo& group, bool causal, size_t microbatch);

private:
    void check_room(const PreparedBatch& batch);
    void list_runs(std::span<const SequenceId> sequences, const int32_t* n_keys);
    void list_key_positions(std::span<const SequenceId> sequences, const int32_t* n_keys);

    RowTable& table_;
    int64_t n_ctx_;

    std::span<const Microbatch> microbatches_;  // of the call under way
    std::vector<size_t> first_token_;           // [n_microbatches + 1] into rows_, own_end_
    std::vector<size_t> first_sequence_;        // [n_microbatches + 1] into n_keys_
    std::vector<int32_t> rows_;                 // [n_tokens of the call]
    std::vector<int32_t> own_end_;  // [n_tokens of the call] one past the token's own key
    std::vector<int32_t> n_keys_;  // by microbatch and sequence: keys once the microbatch is placed
    std::vector<int32_t> added_;   // [n_sequences] keys that the call adds

    std::vector<Run> runs_;  // and the rest of the last view
    std::vector<int32_t> run_begin_;
    std::vector<int32_t> first_;
    std::vector<int32_t> last_;
    std::vector<int32_t> key_positions_;
    std::vector<int32_t> key_begin_;
};

}  // namespace plait
