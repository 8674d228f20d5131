// The interface between a memory and the step loop: where a batch is placed, and what each
// microbatch reads. Memory implements it, and so do the fakes in tests of the step loop.
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

// decode: the tokens continue their sequences. encode: the encoder of an encoder-decoder runs; its
// output replaces the encoder output of the sequences, and nothing else changes.
enum class StepKind : uint8_t { decode, encode };

// The rows of one group that one microbatch reads and writes.
//
// Token i of the microbatch attends to keys first[i] <= j < last[i] of its sequence. Causality,
// windows, chunks and prefixes are all such intervals, so there is no mask. The keys of a sequence
// depend on the kind of the group:
// - attention: its stored rows, including those that the microbatch writes;
// - within: its tokens in the microbatch (the rows of a run are token indices); nothing is written;
// - cross: the rows of its encoder output. An encode step writes these rows and reads none.
//
// Recurrent groups have one row per sequence of the microbatch and fill in only read_rows and
// write_rows. Row 0 is the state of an empty sequence: all zeros, and never written.
struct GroupView {
    std::span<const int32_t> read_rows;      // [n_sequences] state before the microbatch
    std::span<const int32_t> write_rows;     // [n_tokens] key and value; recurrent: [n_sequences]
    std::span<const Run> runs;               // of all sequences of the microbatch, in their order
    std::span<const int32_t> run_begin;      // [n_sequences + 1] into runs
    std::span<const int32_t> first;          // [n_tokens] first key
    std::span<const int32_t> last;           // [n_tokens] one past the last key
    std::span<const int32_t> key_positions;  // [n_keys], sequence-major; empty if not needed
    std::span<const int32_t> key_begin;      // [n_sequences + 1] into key_positions; empty likewise
};

// A pending rotation of the key in `row` by `delta` positions.
struct KeyShift {
    uint8_t group = 0;
    int32_t row = 0;
    int32_t delta = 0;
};

class StepMemory {
public:
    virtual ~StepMemory() = default;

    virtual const MemoryLayout& layout() const = 0;
    // The stored sequences that a batch of this kind continues.
    virtual const SequenceIndex& sequences(StepKind kind) const = 0;

    // A step consists of place(), then view() for each microbatch, then commit() or rollback().
    // place() takes rows for all microbatches. If they do not fit, it throws CacheFull with the
    // numbers of rows needed and free, and takes none. The batch and its microbatches must outlive
    // the step, and no edit may happen during it. A view is valid until the next call.
    virtual void place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Microbatch> microbatches) = 0;
    virtual GroupView view(uint8_t group, size_t microbatch) = 0;
    virtual void commit() noexcept = 0;
    virtual void rollback() noexcept = 0;

    // Edits leave rotations of keys pending. take_shifts() appends them to `shifts`, and they are
    // no longer pending; the caller applies them.
    virtual bool has_shifts() const = 0;
    virtual void take_shifts(std::vector<KeyShift>& shifts) = 0;
};

}  // namespace plait
