// What the block encoders share. Every function is defined for NaN and infinities too, where a plain
// conversion to an integer would not be.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

PLAIT_INLINE float magnitude(float value) { return value < 0 ? -value : value; }

// 0 where the scale is 0, so that an all-zero block encodes to zeros.
PLAIT_INLINE float reciprocal(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

// Truncates a value to [0, most]; NaN gives 0.
PLAIT_INLINE uint8_t truncate_to(float value, int most) {
    if (!(value > 0)) return 0;
    return static_cast<uint8_t>(value < static_cast<float>(most) ? static_cast<int>(value) : most);
}

// Nearest integer in [-127, 127], ties away from zero; NaN gives 0.
PLAIT_INLINE int8_t round_to_i8(float value) {
    if (!(value == value)) return 0;
    if (value >= 127) return 127;
    if (value <= -127) return -127;
    const int whole = static_cast<int>(value);
    const float rest = value - static_cast<float>(whole);
    return static_cast<int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

// The value of a block that is largest in magnitude, with its sign: the first of equals.
PLAIT_INLINE float extreme(const float* values, int count) {
    float largest = 0;
    for (int i = 0; i < count; ++i) {
        if (magnitude(largest) < magnitude(values[i])) largest = values[i];
    }
    return largest;
}

struct Range {
    float least, most;
};

PLAIT_INLINE Range range_of(const float* values, int count) {
    Range range{3.402823466e+38f,
                -3.402823466e+38f};  // FLT_MAX: NaN and infinities leave it finite
    for (int i = 0; i < count; ++i) {
        if (values[i] < range.least) range.least = values[i];
        if (values[i] > range.most) range.most = values[i];
    }
    return range;
}

}  // namespace plait
