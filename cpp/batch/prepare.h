// Checks a batch against its limits and the past, and fills in the positions left open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch/batch.h"
#include "batch/sequence_index.h"

namespace plait {

struct BatchLimits {
    int64_t n_vocab = 0;
    int64_t width = 0;          // of an embedding row
    int32_t n_batch = 2048;     // most entries of a call
    int32_t n_seq_max = 1;
    int32_t axes = 1;           // positions per token: 1, or 4 for M-RoPE
    bool coupled = true;        // one token in several sequences is allowed
};

// A batch ready to be split: every entry has a position on every axis and at least one sequence.
// The arrays are reused from call to call.
struct PreparedBatch {
    BatchView source;
    int axes = 1;
    std::vector<Position> positions;       // [n, axes]
    std::vector<int32_t> sequence_begin;   // [n + 1]
    std::vector<SequenceId> sequences;     // distinct per entry, as the caller gave them
    uint32_t n_outputs = 0;

    size_t size() const { return source.size; }
    SequenceId first_sequence(size_t entry) const {
        return sequences[static_cast<size_t>(sequence_begin[entry])];
    }
    std::span<const SequenceId> sequences_of(size_t entry) const {
        const auto begin = static_cast<size_t>(sequence_begin[entry]);
        return std::span(sequences).subspan(begin, static_cast<size_t>(sequence_begin[entry + 1]) - begin);
    }
    // Position on the time axis.
    Position position(size_t entry) const { return positions[entry * static_cast<size_t>(axes)]; }

    // For prepare(): per sequence, the next position expected within this batch; -1 = untouched.
    std::vector<Position> next;
    std::vector<SequenceId> touched;
};

// Throws BatchError naming the entry, the value and what was expected; `prepared` is then unspecified.
// A sequence that holds something goes on at exactly 1 + its largest position component; an empty
// one may start anywhere. With several axes t may repeat inside one batch, and text entries of one
// position p stand for (p, p, p, 0).
void prepare(const BatchView& batch, const BatchLimits& limits, const SequenceIndex& past,
             PreparedBatch& prepared);

}  // namespace plait
