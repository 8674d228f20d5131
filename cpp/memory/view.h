// Where one piece's tokens go in memory and what they may see. Plain data, made anew each step.
#pragma once

#include <cstdint>
#include <span>

namespace plait {

// Consecutive rows that hold consecutive keys of one sequence. `ordinal` is that of the first: how
// many tokens its sequence had taken before it; inside a run ordinals go up by one. Kernels sum
// keys in blocks aligned to ordinals, so which rows hold the keys cannot change a bit.
// Plain integers in this order: device code reads the same sixteen bytes.
struct Run {
    int32_t row = 0;
    int32_t count = 0;
    int32_t first_key = 0;  // index of the first among the sequence's keys, oldest first
    int32_t ordinal = 0;
    friend bool operator==(const Run&, const Run&) = default;
};

// Attention over stored rows. Token i of the piece sees keys first[i] <= j < last[i] of its own
// sequence. Causality, windows, chunks and prefixes are all such intervals, so there is no mask.
struct AttentionView {
    std::span<const int32_t> write_rows;  // [n_tokens] row that takes each token's key and value
    std::span<const Run> runs;            // of all the piece's sequences, one after the other
    std::span<const int32_t> run_begin;   // [n_sequences + 1] runs of a sequence
    std::span<const int32_t> first;       // [n_tokens]
    std::span<const int32_t> last;        // [n_tokens]
    std::span<const int32_t> key_positions;  // by key of each sequence; empty unless asked for
    std::span<const int32_t> key_begin;      // [n_sequences + 1] into key_positions; empty likewise
};

// One state row per sequence of the piece: read before, written after. Row 0 is all zeros and never
// written: the state of a fresh sequence.
struct RecurrentView {
    std::span<const int32_t> read_rows;   // [n_sequences]
    std::span<const int32_t> write_rows;  // [n_sequences]
};

}  // namespace plait
