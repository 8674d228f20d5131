// Where one piece's tokens go in memory and what they may see. Plain data, made anew each step.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/run.h"

namespace plait {

// Token i of the piece sees keys first[i] <= j < last[i] of its own sequence. Causality, windows,
// chunks and prefixes are all such intervals, so there is no mask.
//   attention: keys are stored rows, those that the piece writes among them
//   within:    keys are the tokens of the piece: a run's rows count these;
//   nothing is written cross:     keys are the rows of the encoder's output; an
//   encode step writes them and sees none
struct AttentionView {
    std::span<const int32_t> write_rows;     // [n_tokens] row that takes each token's key and value
    std::span<const Run> runs;               // of all the piece's sequences, one after the other
    std::span<const int32_t> run_begin;      // [n_sequences + 1] runs of a sequence
    std::span<const int32_t> first;          // [n_tokens]
    std::span<const int32_t> last;           // [n_tokens]
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
