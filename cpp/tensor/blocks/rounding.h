// Rounding helpers of the block encoders. Unlike a plain conversion to an integer, every function
// is defined for NaN and infinities.
#pragma once

#include <cstdint>

#include "base/inline.h"

namespace plait {

PLAIT_INLINE float magnitude(float value) { return value < 0 ? -value : value; }

// Returns 0 for a scale of 0, so an all-zero block encodes to zeros.
PLAIT_INLINE float reciprocal(float scale) { return scale != 0 ? 1.0f / scale : 0.0f; }

// Truncates to an integer in [0, max]; NaN gives 0.
PLAIT_INLINE uint8_t truncate_to(float value, int max) {
    if (!(value > 0)) return 0;
    return static_cast<uint8_t>(value < static_cast<float>(max) ? static_cast<int>(value) : max);
}

// Rounds to the nearest integer in [-127, 127], ties away from zero; NaN gives 0.
PLAIT_INLINE int8_t round_to_i8(float value) {
    if (!(value == value)) return 0;
    if (value >= 127) return 127;
    if (value <= -127) return -127;
    const int whole = static_cast<int>(value);
    const float rest = value - static_cast<float>(whole);
    return static_cast<int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

// Returns the value with the largest magnitude, including its sign; the first one of equal
// magnitudes.
PLAIT_INLINE float extreme(const float* values, int count) {
    float largest = 0;
    for (int i = 0; i < count; ++i) {
        if (magnitude(largest) < magnitude(values[i])) largest = values[i];
    }
    return largest;
}

struct Range {
    float min, max;
};

PLAIT_INLINE Range range_of(const float* values, int count) {
    // FLT_MAX, so that the range is finite even if all values are NaN or infinite.
    Range range{3.402823466e+38f, -3.402823466e+38f};
    for (int i = 0; i < count; ++i) {
        if (values[i] < range.min) range.min = values[i];
        if (values[i] > range.max) range.max = values[i];
    }
    return range;
}

}  // namespace plait
