// Checks a batch against its limits and the past, and fills in the positions left open.
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
    int64_t width = 0;        // of an embedding row
    int64_t n_positions = 0;  // a position is below this; 0: any
    int32_t n_batch = 2048;   // most entries of a call
    int32_t n_seq_max = 1;
    int32_t axes = 1;                  // positions per token: 1, or 4 for M-RoPE
    bool coupled = true;               // one token in several sequences is allowed
    std::string_view call = "decode";  // what messages begin with
};

// A batch ready to be split: every entry has a position on every axis and at least one sequence.
// The arrays are reused from call to call.
struct PreparedBatch {
    BatchView source;
    int axes = 1;
    std::vector<Position> positions;      // [n, axes]
    std::vector<int32_t> sequence_begin;  // [n + 1]
    // Distinct and ascending per entry. A coupled entry thereby goes to the same sequence as those
    // coupled before it, and handling sequence after sequence keeps the order within each of them.
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

    std::vector<Position> next;       // [n_seq_max] position where the sequence goes on after this
                                      // batch; meaningful where last_entry >= 0
    std::vector<int32_t> last_entry;  // [n_seq_max] last entry of the sequence; -1: none
    std::vector<SequenceId> touched;  // the sequences of the batch, in order of appearance
};

// Throws BatchError naming the entry, the value and what was expected; `prepared` is then
// unspecified. A sequence that holds something goes on at exactly 1 + its largest position
// component; an empty one may start anywhere. Entries of one position p stand for (p, p, p, 0)
// where a token has several axes. There a sequence goes on at or after that position, and entries
// that give all axes need only not decrease in (t, y, x) inside one batch: the patches of an image
// share t.
void prepare(const BatchView& batch, const BatchLimits& limits, const SequenceIndex& past,
             PreparedBatch& prepared);

}  // namespace plait
