// What the sequences of a memory hold, independent of row numbers: equal contents give equal
// descriptions. The bytes of the items are stored separately.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/sequence_index.h"
#include "memory/layout.h"

namespace plait {

struct SequenceState {
    std::vector<int32_t> items;  // oldest first
    // Positions without an item: a window has freed them, or a recurrent state was computed from
    // them.
    PositionRange past{0, 0};
    friend bool operator==(const SequenceState& a, const SequenceState& b) {
        return a.items == b.items && a.past.begin == b.past.begin && a.past.end == b.past.end;
    }
};

// An item is the content of one row: a token or a recurrent state. Sequences that share a row list
// the same item. Items are numbered in the order in which the sequences list them.
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
    bool whole = false;                 // describes the whole memory rather than one sequence
    std::vector<SequenceId> sequences;  // ascending
    std::vector<PartState> parts;
    friend bool operator==(const MemoryState&, const MemoryState&) = default;
};

// Rows of one group and the items that they hold, in parallel. An item can have several rows if
// sequences that shared it no longer can.
struct StateRows {
    uint8_t group = 0;
    uint32_t part = 0;  // index in MemoryState::parts
    std::vector<int32_t> items;
    std::vector<int32_t> rows;
};

}  // namespace plait
