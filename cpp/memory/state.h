// A description of what the sequences of a memory hold. It does not contain row numbers, so equal
// contents have equal descriptions. The bytes of the rows are saved separately.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/sequence_index.h"
#include "memory/layout.h"

namespace plait {

struct SequenceState {
    std::vector<int32_t> items;  // oldest first
    // Positions of tokens that have no item: a window has freed their keys, or a recurrent state
    // was computed from them.
    PositionRange unstored{0, 0};
    friend bool operator==(const SequenceState&, const SequenceState&) = default;
};

// An item is the content of one row: the keys and values of a token, or a recurrent state.
// Sequences that share a row list the same item. Items are numbered in the order of their first
// listing.
struct PartState {
    uint8_t kind = 0;  // PartKind::code
    Window window;
    int32_t n_items = 0;
    int32_t axes = 0;                      // 0: items have no position
    std::vector<Position> positions;       // [n_items, axes]
    std::vector<int32_t> ordinals;         // [n_items], or empty
    std::vector<SequenceState> sequences;  // parallel to MemoryState::sequences
    friend bool operator==(const PartState&, const PartState&) = default;
};

struct MemoryState {
    bool whole = false;                 // true: the whole memory; false: one sequence
    std::vector<SequenceId> sequences;  // ascending
    std::vector<PartState> parts;
    friend bool operator==(const MemoryState&, const MemoryState&) = default;
};

// The rows of one group and the items that they hold, in parallel. An item that several sequences
// share has several rows when it is restored into separate streams.
struct StateRows {
    uint8_t group = 0;
    uint32_t part = 0;           // index in MemoryState::parts
    std::vector<int32_t> items;  // [n]
    std::vector<int32_t> rows;   // [n]
};

}  // namespace plait
