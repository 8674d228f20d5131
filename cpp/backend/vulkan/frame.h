// How shaders find what they work on; shaders/lib/frame.glsl reads the same bytes.
//
// A dispatch is pushed two addresses, recorded once: of its arguments, which never change, and of
// the frame, which every run fills anew. A value's address is an offset from one of the frame's
// bases, so a plan outlives any particular arena.
#pragma once

#include <cstdint>
#include <type_traits>

namespace plait::vulkan {

enum Base : uint32_t { kFixed, kArena, kInputs, kOutput0, kOutput1, kConstants, kBases };

// The first byte of a value. Weights and caches never move: their base is address 0.
struct Ref {
    uint64_t offset = 0;
    uint32_t base = kFixed;
    uint32_t padding = 0;
};

// What the rows of a dispatch count; the first four are plait::Extent.
enum Count : uint32_t { kFixedRows, kTokens, kOutputs, kMoves, kSequences, kCounts };

struct Frame {
    uint64_t base[kBases] = {};
    uint32_t rows[kCounts] = {};  // by Count; of kFixedRows: unused
    uint32_t padding = 0;
};
static_assert(sizeof(Ref) == 16 && sizeof(Frame) == 72 && std::is_trivially_copyable_v<Frame>);

// Rows of a value: so many where they are fixed, otherwise as many as the run has of `count`.
struct Rows {
    uint32_t count = kFixedRows;
    uint32_t fixed = 1;

    uint32_t in(const Frame& frame) const {
        return count == kFixedRows ? fixed : frame.rows[count];
    }
};

}  // namespace plait::vulkan
