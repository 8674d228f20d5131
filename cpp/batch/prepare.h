// Checks a batch against its limits and the stored sequences, and fills in missing positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "batch/batch.h"
#include "batch/sequence_index.h"

namespace plait {

struct BatchLimits {
    int64_t n_vocab = 0;
    int64_t width = 0;  // of an embedding row; 0: entries must be tokens
    // Above 0: entries must be rows of the residual stream that enters this layer.
    int first_layer = 0;
    int64_t n_positions = 0;  // exclusive upper bound of positions; 0: none
    int32_t n_batch = 2048;   // max entries of a call
    int32_t n_seq_max = 1;
    int32_t axes = 1;                  // positions per token: 1, or 4 for M-RoPE
    bool coupled = true;               // an entry may belong to several sequences
    std::string_view call = "decode";  // first word of error messages
};

// A checked batch: every entry has a position on every axis and at least one sequence. The arrays
// are reused from call to call.
struct PreparedBatch {
    BatchView source;
    int axes = 1;
    std::vector<Position> positions;      // [n, axes]
    std::vector<int32_t> sequence_begin;  // [n + 1]
    // Distinct and ascending per entry. Entries that belong to the same sequences therefore have
    // the same first sequence, and grouping entries by first sequence keeps the order in each
    // sequence.
    std::vector<SequenceId> sequences;
    uint32_t n_outputs = 0;

    size_t size() const { return source.size; }
    SequenceId first_sequence(size_t entry) const {
        return sequences[static_cast<size_t>(sequence_begin[entry])];
    }
    std::span<const SequenceId> sequences_of(size_t entry) const {
        const auto begin = static_cast<size_t>(sequence_begin[entry]);
        const auto end = static_cast<size_t>(sequence_begin[entry + 1]);
        return std::span(sequences).subspan(begin, end - begin);
    }
    // Position on the time axis.
    Position position(size_t entry) const { return positions[entry * static_cast<size_t>(axes)]; }
    // On every axis. [axes]
    std::span<const Position> positions_of(size_t entry) const {
        const auto n = static_cast<size_t>(axes);
        return std::span(positions).subspan(entry * n, n);
    }

    // [n_seq_max] position after the sequence's last token, including this batch. Undefined for
    // sequences without entries.
    std::vector<Position> next;
    std::vector<int32_t> last_entry;  // [n_seq_max] last entry of the sequence; -1: none
    std::vector<SequenceId> touched;  // the sequences of the batch, in order of appearance
};

// Checks `batch` and writes the result to `prepared`. `stored` has the sequences that the batch
// continues. Throws BatchError with the entry, its value and the expected value; `prepared` is then
// unspecified.
//
// An empty sequence may start at any position. Otherwise let `next` be 1 + the largest position of
// the sequence on any axis. With one axis, the next entry must be at `next`. With several axes, a
// single position p is equivalent to (p, p, p, 0), and the next entry must have t >= next; within
// one batch, an entry that gives all axes may instead continue the entry before it in nondecreasing
// (t, y, x) order, as the patches of an image do.
void prepare(const BatchView& batch, const BatchLimits& limits, const SequenceIndex& stored,
             PreparedBatch& prepared);

}  // namespace plait
