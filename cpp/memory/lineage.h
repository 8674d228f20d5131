// Records which sequences have a common prefix because one was copied from the other. The rows that
// they hold do not show this: windows free rows, states are replaced, and streams do not share
// rows.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/sequence_index.h"

namespace plait {

class Lineage {
public:
    explicit Lineage(int32_t n_sequences) : marks_(static_cast<size_t>(n_sequences)) {}
    // A copy has room for what cut() adds, like the original.
    Lineage(const Lineage& other) : marks_(other.marks_), ref_counts_(other.ref_counts_) {
        copy_unused(other);
    }
    Lineage& operator=(const Lineage& other) {
        marks_ = other.marks_;
        ref_counts_ = other.ref_counts_;
        copy_unused(other);
        return *this;
    }
    void swap(Lineage& other) noexcept {
        marks_.swap(other.marks_);
        ref_counts_.swap(other.ref_counts_);
        unused_.swap(other.unused_);
    }

    // Returns, by sequence, the position before which it and `s` are known to have the same tokens;
    // 0 if no common prefix is known.
    std::vector<Position> common(SequenceId s) const;

    // Records that `to` was replaced by a copy of positions [0, end) of `from`. reserve_fork() must
    // be called first; it allocates memory.
    void reserve_fork(SequenceId from, SequenceId to);
    void fork(SequenceId from, SequenceId to, Position end) noexcept;
    // Records that tokens from position `begin` on were removed or changed.
    void cut(SequenceId s, Position begin) noexcept;

private:
    // Sequences that have marks with the same id have the same tokens before the smaller `end`.
    struct Mark {
        size_t id = 0;
        Position end = 0;
    };
    std::vector<Mark>& marks(SequenceId s) { return marks_[static_cast<size_t>(s)]; }
    const std::vector<Mark>& marks(SequenceId s) const { return marks_[static_cast<size_t>(s)]; }
    void drop(size_t id) noexcept;
    void copy_unused(const Lineage& other) {
        unused_.reserve(ref_counts_.size());
        unused_ = other.unused_;
    }

    std::vector<std::vector<Mark>> marks_;  // by sequence
    std::vector<int32_t> ref_counts_;       // by mark id: number of sequences that have it
    std::vector<size_t> unused_;            // mark ids that no sequence has
};

}  // namespace plait
