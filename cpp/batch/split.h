// Cuts a batch into microbatches small enough to run at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/prepare.h"

namespace plait {

// One microbatch: entries [begin, end) of the batch, regrouped by sequence. A coupled entry belongs
// to its first sequence. Microbatches follow each other in batch order, so the outputs of a microbatch are
// consecutive rows of the call's outputs. Any order of sequences costs the same number of microbatches.
struct Microbatch {
    std::vector<uint32_t> entries;      // [n_tokens] batch entry of each token, sequence-major
    std::vector<SequenceId> sequences;  // [n_sequences] distinct, in order of first appearance
    std::vector<int32_t> begin;  // [n_sequences + 1] tokens of a sequence: begin[s]..begin[s+1]
    std::vector<int32_t> output_tokens;  // [n_outputs] tokens that want output, in batch order
    uint32_t first_output = 0;           // row of the call's outputs that output_tokens[0] fills

    uint32_t n_tokens() const { return static_cast<uint32_t>(entries.size()); }
    uint32_t n_sequences() const { return static_cast<uint32_t>(sequences.size()); }
    uint32_t n_outputs() const { return static_cast<uint32_t>(output_tokens.size()); }
};

struct SplitPolicy {
    uint32_t max_tokens = 512;
    // Sequences attended in both directions are never cut: a microbatch holds whole sequences, at most
    // max_tokens of them together unless one alone is longer. Microbatches then follow sequences, in
    // order of first appearance, not batch order, and `first_output` counts in that order.
    bool whole_sequences = false;
    // All entries that a sequence has in a microbatch belong to the same sequences, as recurrent states
    // need it: a state goes from one company to another between microbatches only.
    bool constant_coupling = false;
};

// The microbatches of a call; storage is reused from call to call.
class Split {
public:
    // Covers every entry exactly once, keeping each sequence's order.
    std::span<const Microbatch> cut(const PreparedBatch& batch, const SplitPolicy& policy);

private:
    void list_entries(const PreparedBatch& batch, bool whole_sequences);
    Microbatch& next_microbatch();
    void fill(Microbatch& microbatch, const PreparedBatch& batch,
              std::span<const uint32_t> entries);
    size_t end_of_company(const PreparedBatch& batch, size_t begin, size_t end);
    void forget_slots(const Microbatch& microbatch);

    std::vector<Microbatch> microbatches_;
    size_t used_ = 0;
    std::vector<uint32_t> order_;     // every entry, in the order that microbatches take them
    std::vector<uint32_t> ends_;      // where in order_ a cut is allowed; empty: anywhere
    std::vector<int32_t> slot_of_;    // sequence id -> index in the microbatch being built, or -1
    std::vector<uint32_t> entry_of_;  // sequence id -> last entry of it in the microbatch being cut
    std::vector<int32_t> fill_;       // next token of each sequence of the microbatch being built
};

}  // namespace plait
