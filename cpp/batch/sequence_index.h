// The stored sequences, as far as checking a batch needs them. Memory implements this interface.
#pragma once

#include <climits>
#include <cstdint>
#include <optional>
#include <span>

#include "batch/batch.h"

namespace plait {

// Positions begin <= p < end. The default is the whole sequence.
struct PositionRange {
    Position begin = 0;
    Position end = INT32_MAX;
    bool contains(Position p) const { return begin <= p && p < end; }
    bool whole() const { return begin <= 0 && end == INT32_MAX; }
    friend bool operator==(const PositionRange&, const PositionRange&) = default;
};

// The positions of a sequence, both bounds inclusive.
struct PositionBounds {
    Position min = 0;
    Position max = 0;  // the largest on any axis
};

class SequenceIndex {
public:
    virtual ~SequenceIndex() = default;
    // Returns nullopt if the sequence is empty.
    virtual std::optional<PositionBounds> positions(SequenceId sequence) const = 0;
    // Returns true if the given sequences, at least two, have the same content, so that one entry
    // may belong to all of them.
    virtual bool same_content(std::span<const SequenceId> sequences) const = 0;
};

}  // namespace plait
