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

// The reverse; the bytes are zero before the first group.
PLAIT_INLINE void set_scale_min(uint8_t* packed, int group, ScaleMin value) {
    const auto put = [packed](int byte, int bits) {
        packed[byte] = static_cast<uint8_t>(packed[byte] | bits);
    };
    if (group < 4) {
        put(group, value.scale);
        put(group + 4, value.minimum);
    } else {
        put(group + 4, (value.scale & 15) | (value.minimum & 15) << 4);
        put(group - 4, (value.scale >> 4) << 6);
        put(group, (value.minimum >> 4) << 6);
    }
}

}  // namespace plait
