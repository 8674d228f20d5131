// What sequences of a memory hold, without a word about rows: equal contents give equal
// descriptions. The bytes of the rows go beside it, item by item.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/sequence_index.h"
#include "memory/layout.h"

namespace plait {

struct SequenceState {
    std::vector<int32_t> items;  // oldest first
    // Positions that have no item: a window gave them back, or a recurrent state is made of them.
    PositionRange past{0, 0};
    friend bool operator==(const SequenceState& a, const SequenceState& b) {
        return a.items == b.items && a.past.begin == b.past.begin && a.past.end == b.past.end;
    }
};

// An item is what a row holds: a token, or a state. Sequences that share it name the same item.
// Items are numbered as they come, sequence after sequence, oldest first.
struct PartState {
    GroupKind kind = GroupKind::attention;
    Window window;
    int32_t n_items = 0;
    int32_t axes = 0;                      // 0: items have no position of their own
    std::vector<Position> positions;       // [n_items, axes]
    std::vector<int32_t> ordinals;         // [n_items], or empty
    std::vector<SequenceState> sequences;  // as MemoryState::sequences
    friend bool operator==(const PartState&, const PartState&) = default;
};

struct MemoryState {
    bool whole = false;                 // of a whole memory; else of one sequence
    std::vector<SequenceId> sequences;  // ascending
    std::vector<PartState> parts;
    friend bool operator==(const MemoryState&, const MemoryState&) = default;
};

// Rows of one group beside the items whose bytes they hold. An item may have several rows, where
// sequences that shared it no longer can.
struct StateRows {
    uint8_t group = 0;
    uint32_t part = 0;  // of MemoryState::parts
    std::vector<int32_t> items;
    std::vector<int32_t> rows;
};

}  // namespace plait
