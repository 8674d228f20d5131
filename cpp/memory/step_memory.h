// The step loop's view of a memory: where a batch is placed and what each microbatch reads. Memory
// implements it; tests of the step loop implement it in a few lines.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/prepare.h"
#include "batch/sequence_index.h"
#include "batch/split.h"
#include "memory/layout.h"
#include "tensor/run.h"

namespace plait {

// decode: tokens continue their sequences. encode: the encoder of an encoder-decoder; its output
// replaces the encoder output of the sequences, and nothing else changes.
enum class StepKind : uint8_t { decode, encode };

// What one microbatch reads and writes in the rows of one group. Plain data, computed for each step.
//
// Token i of the microbatch sees keys first[i] <= j < last[i] of its sequence. Causality, windows,
// chunks and prefixes are all such intervals, so there is no mask. The keys of a sequence are
// - attention: its stored rows, including those that the microbatch writes;
// - within: its tokens in the microbatch (the rows of a run are token indices); nothing is written;
// - cross: the rows of the encoder's output. An encode step writes them and sees none.
//
// Recurrent groups have one row per sequence of the microbatch and fill in read_rows and write_rows
// only. Row 0 is all zeros and never written: the state of an empty sequence.
struct GroupView {
    std::span<const int32_t> read_rows;      // [n_sequences] state before the microbatch
    std::span<const int32_t> write_rows;     // [n_tokens] key and value; recurrent: [n_sequences]
    std::span<const Run> runs;               // of all sequences of the microbatch, in their order
    std::span<const int32_t> run_begin;      // [n_sequences + 1] into runs
    std::span<const int32_t> first;          // [n_tokens]
    std::span<const int32_t> last;           // [n_tokens]
    std::span<const int32_t> key_positions;  // [n_keys], sequence-major; empty if not needed
    std::span<const int32_t> key_begin;      // [n_sequences + 1] into key_positions; empty likewise
};

// The key in `row` has to be rotated by `delta` positions.
struct KeyShift {
    uint8_t group = 0;
    int32_t row = 0;
    int32_t delta = 0;
};

class StepMemory {
public:
    virtual ~StepMemory() = default;

    virtual const MemoryLayout& layout() const = 0;
    // The sequences that a batch of this kind continues.
    virtual const SequenceIndex& sequences(StepKind kind) const = 0;

    // A step: place(), then view() for each microbatch, then commit() or rollback(). place() takes
    // rows for every microbatch; if they do not fit, it throws CacheFull with the numbers of rows
    // needed and free, and takes none. The batch and its microbatches must live until the step ends,
    // and no edit may happen before that. A view is valid until the next call.
    virtual void place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Microbatch> microbatches) = 0;
    virtual GroupView view(uint8_t group, size_t microbatch) = 0;
    virtual void commit() noexcept = 0;
    virtual void rollback() noexcept = 0;

    // Rotations of keys that edits left pending. take_shifts() appends them and counts them as done.
    virtual bool has_shifts() const = 0;
    virtual void take_shifts(std::vector<KeyShift>& shifts) = 0;
};

}  // namespace plait
