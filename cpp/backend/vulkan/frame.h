// The addresses through which a shader finds its arguments and values. The structs must match
// shaders/lib/frame.glsl.
//
// The push constants of a dispatch are two addresses: that of its arguments, which never change,
// and that of the frame, which is written before every run. A value is addressed by an offset from
// one of the bases in the frame. Therefore a plan stays valid when the arena is reallocated.
#pragma once

#include <cstdint>
#include <type_traits>

#include "graph/op_enums.h"

namespace plait::vulkan {

enum Base : uint32_t { kFixed, kArena, kInputs, kOutput0, kOutput1, kConstants, kBases };

// Address of a value: an offset from a base. Weights and caches never move; their base is address
// 0.
struct Ref {
    uint64_t offset = 0;
    uint32_t base = kFixed;
    uint32_t padding = 0;
};

// Counts that the number of rows of a dispatch can depend on. The first four are those of Extent.
enum Count : uint32_t { kFixedRows, kTokens, kOutputs, kMoves, kSequences, kCounts };
static_assert(kFixedRows == static_cast<Count>(Extent::fixed) &&
              kTokens == static_cast<Count>(Extent::tokens));
static_assert(kOutputs == static_cast<Count>(Extent::outputs) &&
              kMoves == static_cast<Count>(Extent::moves));

struct Frame {
    uint64_t base[kBases] = {};
    uint32_t rows[kCounts] = {};  // [Count]; entry kFixedRows is unused
    uint32_t padding = 0;
};
static_assert(sizeof(Ref) == 16 && sizeof(Frame) == 72 && std::is_trivially_copyable_v<Frame>);

// Number of rows of a value: `fixed` if `count` is kFixedRows, otherwise the frame's count.
struct Rows {
    uint32_t count = kFixedRows;
    uint32_t fixed = 1;

    uint32_t in(const Frame& frame) const {
        return count == kFixedRows ? fixed : frame.rows[count];
    }
};

}  // namespace plait::vulkan
