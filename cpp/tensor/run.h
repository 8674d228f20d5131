// The unit in which attention kernels receive cache rows.
#pragma once

#include <cstdint>

namespace plait {

// Consecutive rows that hold consecutive keys of one sequence. The ordinal of a key is the number
// of tokens of its sequence that were written before it; within a run, ordinals increase by one.
// Kernels sum keys in blocks aligned to ordinals, so results do not depend on which rows hold the
// keys.
//
// Device code reads the same sixteen bytes, so order and types of the members are fixed.
struct Run {
    int32_t row = 0;
    int32_t count = 0;
    int32_t first_key = 0;  // index of the first key among the sequence's keys, oldest first
    int32_t ordinal = 0;    // of the first key
    friend bool operator==(const Run&, const Run&) = default;
};

}  // namespace plait
