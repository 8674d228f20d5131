// How much of their beginning sequences have in common, because one was copied from the other. What
// rows they hold does not tell: windows retire rows, states are replaced, streams copy.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/sequence_index.h"

namespace plait {

class Lineage {
public:
    explicit Lineage(int32_t n_sequences) : marks_(static_cast<size_t>(n_sequences)) {}

    // Both hold the same tokens at positions before this; 0: not known to.
    Position common(SequenceId a, SequenceId b) const;

    // `to` has become the same as `from` before position `end`. Needs reserve_fork().
    void reserve_fork(SequenceId from, SequenceId to);
    void fork(SequenceId from, SequenceId to, Position end) noexcept;
    // The sequence has changed from position `begin` on, other than by growing.
    void cut(SequenceId s, Position begin) noexcept;

private:
    // Sequences with the same mark have in common what lies before both of their ends.
    struct Mark {
        size_t id = 0;
        Position end = 0;
    };
    std::vector<Mark>& marks(SequenceId s) { return marks_[static_cast<size_t>(s)]; }
    const std::vector<Mark>& marks(SequenceId s) const { return marks_[static_cast<size_t>(s)]; }
    void drop(size_t id) noexcept;

    std::vector<std::vector<Mark>> marks_;  // by sequence
    std::vector<int32_t> holders_;          // by mark: sequences that have it
    std::vector<size_t> unused_;            // marks that none has
};

}  // namespace plait
