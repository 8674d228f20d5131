// What a batch must know about the past to be checked. The memory implements it.
#pragma once

#include <climits>
#include <cstdint>
#include <optional>
#include <span>

#include "batch/batch.h"

namespace plait {

struct PositionRange {  // half open; the default is the whole sequence
    Position begin = 0;
    Position end = INT32_MAX;
    bool contains(Position p) const { return begin <= p && p < end; }
    bool whole() const { return begin <= 0 && end == INT32_MAX; }
};

struct PositionBounds {  // of the positions that a sequence holds, both included
    Position min = 0;
    Position max = 0;  // the largest of all axes
};

// Two questions, so that a test can fake it in a few lines.
class SequenceIndex {
public:
    virtual ~SequenceIndex() = default;
    // Nothing when the sequence is empty.
    virtual std::optional<PositionBounds> positions(SequenceId sequence) const = 0;
    // Whether one token may go on all of these (at least two) sequences: they hold the same.
    virtual bool same_content(std::span<const SequenceId> sequences) const = 0;
};

}  // namespace plait
