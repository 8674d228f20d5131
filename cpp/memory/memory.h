// What a context remembers between steps. One interface; one file per variant. It does bookkeeping
// only: it knows rows, never bytes, and is told when data has moved.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "batch/prepare.h"
#include "batch/sequence_index.h"
#include "batch/split.h"
#include "memory/layout.h"
#include "memory/state.h"
#include "memory/view.h"

namespace plait {

// Rows [from, from + n) of a group go to [to, to + n). A list is carried out in order.
struct RowMove {
    uint8_t group = 0;
    int32_t from = 0;
    int32_t to = 0;
    int32_t n = 1;
    friend bool operator==(const RowMove&, const RowMove&) = default;
};

// The keys in `row` are to be rotated by `delta` positions.
struct KeyShift {
    uint8_t group = 0;
    int32_t row = 0;
    int32_t delta = 0;
};

// One taken row, for people: KVCache.cells().
struct Cell {
    int32_t row = 0;
    int32_t stream = 0;
    Position position[4] = {0, 0, 0, 0};
    int32_t shift = 0;  // rotation not yet applied
    int32_t ordinal = 0;
    std::vector<SequenceId> sequences;  // ascending
};

// decode: tokens go on where their sequences end. encode: the encoder of an encoder-decoder; its
// output replaces what the sequences held of an encoder's output, and nothing else changes.
enum class StepKind : uint8_t { decode, encode };

// Where a sequence can go back to: the first `next` tokens of `from` (the sequence itself or a fork
// of it) are its own, and can be had. What follows has to be fed again.
struct RewindPoint {
    Position next = 0;
    SequenceId from = 0;
    friend bool operator==(const RewindPoint&, const RewindPoint&) = default;
};

// How long the runs are that attention walks: `n_keys / n_runs` on average.
struct RunCount {
    int64_t n_keys = 0;  // of all sequences
    int64_t n_runs = 0;
    int64_t fewest_runs = 0;  // as one after the other, sequence after sequence
};

class Memory : public SequenceIndex {
public:
    virtual std::string_view kind() const = 0;  // "unified", "streams", "sliding", ...
    virtual const MemoryLayout& layout() const = 0;
    virtual int32_t n_streams() const = 0;
    virtual int32_t n_sequences() const = 0;  // n_seq_max
    virtual int64_t n_cells() const = 0;
    virtual int64_t n_used() const = 0;

    // What a batch of the kind goes on from.
    virtual const SequenceIndex& past(StepKind kind) const = 0;
    // Whether pieces must be cut with SplitPolicy::steady_company.
    virtual bool steady_company() const = 0;

    // A step. place() takes rows for every piece, or throws CacheFull (nothing taken) saying how
    // many were needed and free. Views are then asked for piece by piece; a view is valid until the
    // next call. commit() keeps what was placed, rollback() gives it back; neither can fail.
    // Between place() and its end no edit may happen.
    virtual void place(StepKind kind, const PreparedBatch& batch,
                       std::span<const Piece> pieces) = 0;
    virtual AttentionView attention(uint8_t group, size_t piece) = 0;
    virtual RecurrentView recurrent(uint8_t group, size_t piece) = 0;
    virtual void commit() noexcept = 0;
    virtual void rollback() noexcept = 0;

    // Edits change the bookkeeping at once and append the data movement they need to `moves`, which
    // the caller carries out before anything else. They throw (UnsupportedError, CacheFull,
    // InvalidArgument) or return false having changed nothing. Sequence ids and ranges were
    // checked.
    [[nodiscard]] virtual bool remove(SequenceId sequence, PositionRange range) = 0;
    virtual void copy(SequenceId from, SequenceId to, PositionRange range,
                      std::vector<RowMove>& moves) = 0;
    virtual void keep(SequenceId sequence) = 0;
    virtual void add(SequenceId sequence, PositionRange range, int32_t delta,
                     std::vector<RowMove>& moves) = 0;
    virtual void divide(SequenceId sequence, PositionRange range, int32_t divisor,
                        std::vector<RowMove>& moves) = 0;
    virtual void clear() = 0;
    virtual bool can_shift() const = 0;
    virtual bool can_partial_remove() const = 0;

    // Rotations that edits left pending; take_shifts() hands them over and counts them as done.
    virtual bool has_shifts() const = 0;
    virtual void take_shifts(std::vector<KeyShift>& shifts) = 0;

    // The nearest position at or before `next` that the sequence can go back to: by remove() of
    // what follows; or, when `from` is a fork, by refork().
    virtual RewindPoint rewind_point(SequenceId sequence, Position next) const = 0;
    // An edit: `to` gives up all that it holds for the fork's [0, point.next).
    virtual void refork(const RewindPoint& point, SequenceId to, std::vector<RowMove>& moves) = 0;

    // One round of moving rows together: after the last, rows [0, n_used) of every stream are
    // taken, in long runs. Appends at most `max_moves` moves a group and returns how many cells
    // they move; 0: nothing is left to do. In a round no row moves twice, and none is overwritten
    // before it has moved. What rows hold stays the same, pending shifts included. It makes
    // attention faster, never a batch fit: a batch takes any free rows, wherever they are.
    virtual int64_t defragment(int64_t max_moves, std::vector<RowMove>& moves) = 0;
    virtual RunCount count_runs() const = 0;

    // Describes one sequence or all, and where the bytes of each item are. No shift may be pending.
    virtual MemoryState describe(std::optional<SequenceId> sequence,
                                 std::vector<StateRows>& rows) const = 0;
    // Takes up what was described: all of it in place of everything, or one sequence in place of
    // `to` (nothing: of its own id). `rows` says where the bytes go; they must be written before
    // anything else happens. StateError or CacheFull, and nothing has changed.
    virtual void adopt(const MemoryState& state, std::optional<SequenceId> to,
                       std::vector<StateRows>& rows) = 0;
    // Which part of a description is about the group's rows.
    virtual uint32_t state_part(uint8_t group) const = 0;

    virtual std::vector<Cell> cells() const = 0;
    // Rows of a group that hold the sequence's keys, oldest first.
    virtual std::vector<int32_t> rows_of(uint8_t group, SequenceId sequence) const = 0;
};

struct MemoryOptions {
    int64_t n_ctx = 4096;  // cells one sequence can hold
    int32_t n_seq_max = 1;
    std::optional<int64_t> n_cells;  // unified: total; nothing: n_ctx * n_seq_max
    bool streams = false;            // each sequence has n_ctx cells of its own
    bool swa_full = false;           // windows give no rows back
    DType keys = DType::f16;
    DType values = DType::f16;
    int32_t n_batch = 2048;
    int32_t n_ubatch = 512;
    int axes = 1;  // positions a token has
    bool causal = true;
};

// Picks the variant from the specs and options; throws UnsupportedError or InvalidArgument with the
// reason where there is none.
std::unique_ptr<Memory> make_memory(const MemorySpecs& specs, const MemoryOptions& options);

}  // namespace plait
