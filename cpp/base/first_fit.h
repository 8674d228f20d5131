// Plans offsets in one block of memory for allocations with known lifetimes. Each allocation gets
// the first gap that is large enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/checked.h"

namespace plait {

class FirstFit {
public:
    explicit FirstFit(uint64_t alignment) : alignment_(alignment) {}

    // Returns the offset of an allocation that lives from `begin` to `end`, inclusive. `begin` must
    // not decrease from call to call.
    uint64_t take(uint64_t bytes, uint32_t begin, uint32_t end) {
        std::erase_if(live_, [&](const Block& block) { return block.end < begin; });
        const uint64_t padded = align_up(std::max<uint64_t>(bytes, 1), alignment_);
        uint64_t offset = 0;
        auto next = live_.begin();
        for (; next != live_.end() && next->offset < offset + padded; ++next)
            offset = next->offset + next->bytes;
        live_.insert(next, {offset, padded, end});
        bytes_ = std::max(bytes_, offset + padded);
        return offset;
    }
    // The size of the memory block.
    uint64_t bytes() const { return bytes_; }

private:
    struct Block {
        uint64_t offset, bytes;
        uint32_t end;
    };
    uint64_t alignment_;
    uint64_t bytes_ = 0;
    std::vector<Block> live_;  // sorted by offset
};

}  // namespace plait
