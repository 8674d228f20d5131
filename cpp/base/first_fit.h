// Stretches of one block of memory, handed out in the order of time to those who hold them for a
// while: each gets the first gap that is large enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/checked.h"

namespace plait {

class FirstFit {
public:
    explicit FirstFit(uint64_t alignment) : alignment_(alignment) {}

    // From `begin` until `end` has passed. Times of calls never fall.
    uint64_t take(uint64_t bytes, uint32_t begin, uint32_t end) {
        std::erase_if(live_, [&](const Block& block) { return block.end < begin; });
        const uint64_t wanted = align_up(std::max<uint64_t>(bytes, 1), alignment_);
        uint64_t offset = 0;
        auto next = live_.begin();
        for (; next != live_.end() && next->offset < offset + wanted; ++next)
            offset = next->offset + next->bytes;
        live_.insert(next, {offset, wanted, end});
        bytes_ = std::max(bytes_, offset + wanted);
        return offset;
    }
    // That all of them together need.
    uint64_t bytes() const { return bytes_; }

private:
    struct Block {
        uint64_t offset, bytes;
        uint32_t end;
    };
    uint64_t alignment_;
    uint64_t bytes_ = 0;
    std::vector<Block> live_;  // by offset
};

}  // namespace plait
