// Stored sequences for tests of prepare().
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "batch/sequence_index.h"

namespace plait {

// Sequences that are not listed are empty. Those with equal bounds count as the same content.
struct FakeSequences : SequenceIndex {
    std::map<SequenceId, PositionBounds> held;

    std::optional<PositionBounds> positions(SequenceId sequence) const override {
        const auto found = held.find(sequence);
        if (found == held.end()) return std::nullopt;
        return found->second;
    }
    bool same_content(std::span<const SequenceId> sequences) const override {
        const auto first = positions(sequences[0]);
        return std::all_of(sequences.begin(), sequences.end(), [&](SequenceId s) {
            const auto other = positions(s);
            return first.has_value() == other.has_value() &&
                   (!first || (first->min == other->min && first->max == other->max));
        });
    }
};

}  // namespace plait
