// Cache rows as attention kernels are told of them.
#pragma once

#include <cstdint>

namespace plait {

// Consecutive rows that hold consecutive keys of one sequence. `ordinal` is that of the first: how
// many tokens its sequence had taken before it; inside a run ordinals go up by one. Kernels sum
// keys in blocks aligned to ordinals, so which rows hold the keys cannot change a bit.
// Plain integers in this order: device code reads the same sixteen bytes.
struct Run {
    int32_t row = 0;
    int32_t count = 0;
    int32_t first_key = 0;  // index of the first among the sequence's keys, oldest first
    int32_t ordinal = 0;
    friend bool operator==(const Run&, const Run&) = default;
};

}  // namespace plait
