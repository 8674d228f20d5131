// The packed scales of Q4_K and Q5_K: eight groups, each with a 6-bit scale and a 6-bit minimum.
// Source: get_scale_min_k4 in ggml-quants.c (ggml).
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

struct ScaleMin {
    int scale, minimum;  // 0 to 63
};

// Groups 0 to 3 are the low six bits of bytes 0 to 3 (scale) and 4 to 7 (minimum). Groups 4 to 7 have
// their low four bits in bytes 8 to 11 and their high two on top of the bytes of groups 0 to 3.
PLAIT_INLINE ScaleMin scale_min(const uint8_t* packed, int group) {
    if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
    return {(packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4,
            (packed[group + 4] >> 4) | (packed[group] >> 6) << 4};
}

}  // namespace plait
