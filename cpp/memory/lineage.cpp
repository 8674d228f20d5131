#include "memory/lineage.h"

#include <algorithm>

namespace plait {

std::vector<Position> Lineage::common(SequenceId s) const {
    std::vector<Position> ends(ref_counts_.size());  // by mark id
    for (const Mark& mark : marks(s)) ends[mark.id] = mark.end;
    std::vector<Position> longest(marks_.size());
    for (size_t other = 0; other < marks_.size(); ++other)
        for (const Mark& mark : marks_[other])
            longest[other] = std::max(longest[other], std::min(ends[mark.id], mark.end));
    return longest;
}

void Lineage::reserve_fork(SequenceId from, SequenceId to) {
    const size_t n = marks(from).size() + 1;
    marks(from).reserve(n);
    marks(to).reserve(n);
    if (unused_.empty()) {
        unused_.reserve(ref_counts_.size() + 1);
        ref_counts_.push_back(0);
        unused_.push_back(ref_counts_.size() - 1);
    }
    unused_.reserve(ref_counts_.size());
}

void Lineage::fork(SequenceId from, SequenceId to, Position end) noexcept {
    cut(to, 0);
    if (end <= 0) return;
    // Marks that no other sequence has are no longer needed.
    std::erase_if(marks(from), [&](const Mark& mark) {
        const bool alone = ref_counts_[mark.id] == 1;
        if (alone) drop(mark.id);
        return alone;
    });
    const auto at_end = [&](const Mark& mark) { return mark.end == end; };
    if (std::ranges::none_of(marks(from), at_end)) {
        marks(from).push_back({unused_.back(), end});
        ref_counts_[unused_.back()] = 1;
        unused_.pop_back();
    }
    for (const Mark& mark : marks(from)) {
        marks(to).push_back({mark.id, std::min(mark.end, end)});
        ++ref_counts_[mark.id];
    }
}

void Lineage::cut(SequenceId s, Position begin) noexcept {
    std::erase_if(marks(s), [&](Mark& mark) {
        mark.end = std::min(mark.end, begin);
        if (mark.end <= 0) drop(mark.id);
        return mark.end <= 0;
    });
}

void Lineage::drop(size_t id) noexcept {
    if (--ref_counts_[id] == 0) unused_.push_back(id);
}

}  // namespace plait
