// Splits a batch into microbatches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batch/prepare.h"

namespace plait {

// Consecutive entries of a batch, grouped by sequence. An entry of several sequences is grouped
// with its first sequence. Microbatches are in batch order, so the outputs of a microbatch are
// consecutive rows of the call's outputs. The order of sequences in the batch does not affect the
// number of microbatches.
struct Microbatch {
    std::vector<uint32_t> entries;       // [n_tokens] batch entry of each token, sequence-major
    std::vector<SequenceId> sequences;   // [n_sequences] distinct, in order of first appearance
    std::vector<int32_t> begin;          // [n_sequences + 1] first token of each sequence
    std::vector<int32_t> output_tokens;  // [n_outputs] tokens that want output, in batch order
    uint32_t first_output = 0;           // output row of output_tokens[0] in the call

    uint32_t n_tokens() const { return static_cast<uint32_t>(entries.size()); }
    uint32_t n_sequences() const { return static_cast<uint32_t>(sequences.size()); }
    uint32_t n_outputs() const { return static_cast<uint32_t>(output_tokens.size()); }
};

struct SplitPolicy {
    uint32_t max_tokens = 512;
    // For attention in both directions. All tokens of a sequence are in one microbatch, which
    // exceeds max_tokens only if it consists of a single sequence. Entries and outputs are then
    // ordered by sequence, in order of first appearance, instead of batch order. All entries of a
    // sequence must belong to the same sequences: a shared entry would attend to the later entries
    // of one sequence, and its keys would bring them to the others.
    bool whole_sequences = false;
    // For recurrent states. All entries of a sequence in a microbatch belong to the same sequences,
    // so that the microbatch computes one state for these sequences.
    bool constant_coupling = false;
};

// The microbatches of a call. The arrays are reused from call to call.
class Split {
public:
    // Every entry is in exactly one microbatch, and the order within each sequence is kept. The
    // result is valid until the next call. Throws BatchError if whole sequences are partly shared.
    std::span<const Microbatch> cut(const PreparedBatch& batch, const SplitPolicy& policy);

private:
    void order_entries(const PreparedBatch& batch, bool whole_sequences);
    void check_coupling(const PreparedBatch& batch);
    Microbatch& next_microbatch();
    void fill(Microbatch& microbatch, const PreparedBatch& batch,
              std::span<const uint32_t> entries);
    // Where constant coupling ends: the index in order_ of an entry, and its sequence that belongs
    // to other sequences in an earlier entry.
    struct CouplingEnd {
        size_t index;
        SequenceId sequence;
    };
    std::optional<CouplingEnd> find_coupling_end(const PreparedBatch& batch, size_t begin,
                                                 size_t end);
    void clear_slots(const Microbatch& microbatch);

    std::vector<Microbatch> microbatches_;
    size_t n_used_ = 0;
    std::vector<uint32_t> order_;       // [n] all entries, in microbatch order
    std::vector<uint32_t> cut_points_;  // indices in order_ where a microbatch may end; empty: any
    // [n_seq_max], of the microbatch being built.
    std::vector<int32_t> slot_of_;     // index in Microbatch::sequences; -1: no entry yet
    std::vector<uint32_t> entry_of_;   // last entry of the sequence
    std::vector<int32_t> next_token_;  // [n_sequences] next token index of each sequence
};

}  // namespace plait
