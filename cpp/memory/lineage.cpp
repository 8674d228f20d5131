#include "memory/lineage.h"

#include <algorithm>

namespace plait {

Position Lineage::common(SequenceId a, SequenceId b) const {
    Position most = 0;
    for (const Mark& one : marks(a))
        for (const Mark& other : marks(b))
            if (one.id == other.id) most = std::max(most, std::min(one.end, other.end));
    return most;
}

void Lineage::reserve_fork(SequenceId from, SequenceId to) {
    const size_t n = marks(from).size() + 1;
    marks(from).reserve(n);
    marks(to).reserve(n);
    if (unused_.empty()) {
        unused_.reserve(holders_.size() + 1);
        holders_.push_back(0);
        unused_.push_back(holders_.size() - 1);
    }
    unused_.reserve(holders_.size());
}

void Lineage::fork(SequenceId from, SequenceId to, Position end) noexcept {
    cut(to, 0);
    if (end <= 0) return;
    // What nobody else has any more is of no use.
    std::erase_if(marks(from), [&](const Mark& mark) {
        const bool alone = holders_[mark.id] == 1;
        if (alone) drop(mark.id);
        return alone;
    });
    const auto at_end = [&](const Mark& mark) { return mark.end == end; };
    if (std::ranges::none_of(marks(from), at_end)) {
        marks(from).push_back({unused_.back(), end});
        holders_[unused_.back()] = 1;
        unused_.pop_back();
    }
    for (const Mark& mark : marks(from)) {
        marks(to).push_back({mark.id, std::min(mark.end, end)});
        ++holders_[mark.id];
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
    if (--holders_[id] == 0) unused_.push_back(id);
}

}  // namespace plait
