// Least-squares fit of a group's scale, for the encoders of blocks with groups. For fixed codes q
// the error sum (x - s q)^2 is minimal at s = sum x q / sum q^2, where it equals sum x^2 - (sum x
// q)^2 / sum q^2; a line s q - m has two unknowns instead of one. Alternating between codes and
// scale finds only a local minimum, so the search starts from several scales. Every function is
// defined for NaN and infinities.
#pragma once

#include "base/inline.h"
#include "tensor/blocks/rounding.h"

namespace plait {

// Rounds to the nearest integer in [min, max], ties away from zero; NaN gives the integer nearest
// to 0.
PLAIT_INLINE int round_within(float value, int min, int max) {
    if (!(value == value)) value = 0;
    if (value <= static_cast<float>(min)) return min;
    if (value >= static_cast<float>(max)) return max;
    return static_cast<int>(value < 0 ? value - 0.5f : value + 0.5f);
}

// A group whose largest magnitude is not above this encodes to zeros, since its scale could be
// subnormal.
inline constexpr float kSmallestFit = 1e-30f;

// Returns the scale s for which s * q, with integers q in [-steps, steps - 1], is nearest to the
// values. The sign of s is free.
PLAIT_INLINE float fit_scale(const float* values, int count, int steps) {
    const float largest = extreme(values, count);
    if (!(magnitude(largest) > kSmallestFit)) return 0;
    float best = 0, max_explained = 0;
    for (int candidate = -9; candidate <= 9; ++candidate) {
        const float inverse =
            -(static_cast<float>(steps) + 0.1f * static_cast<float>(candidate)) / largest;
        float xq = 0, qq = 0;
        for (int i = 0; i < count; ++i) {
            const auto code =
                static_cast<float>(round_within(values[i] * inverse, -steps, steps - 1));
            xq += values[i] * code;
            qq += code * code;
        }
        if (qq > 0 && xq * xq > max_explained * qq) {
            max_explained = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

struct Line {
    float scale, minimum;  // value = scale * code - minimum, both at least 0
};

// Returns the line that is nearest to the values, for codes in [0, max_code].
PLAIT_INLINE Line fit_line(const float* values, int count, int max_code) {
    const Range range = range_of(values, count);
    const float min = range.min < 0 ? range.min : 0;
    const float span = range.max - min;
    if (!(span > kSmallestFit)) return {0, -min};
    Line best{0, 0};
    float min_error = 3.402823466e+38f;
    for (int candidate = -10; candidate <= 10; ++candidate) {
        const float inverse =
            (static_cast<float>(max_code) + 0.1f * static_cast<float>(candidate)) / span;
        float x = 0, q = 0, xq = 0, qq = 0, xx = 0;
        for (int i = 0; i < count; ++i) {
            const auto code =
                static_cast<float>(round_within((values[i] - min) * inverse, 0, max_code));
            x += values[i];
            q += code;
            xq += values[i] * code;
            qq += code * code;
            xx += values[i] * values[i];
        }
        const auto n = static_cast<float>(count);
        const float determinant = n * qq - q * q;
        if (!(determinant > 0)) continue;
        Line line{(n * xq - x * q) / determinant, (q * xq - qq * x) / determinant};
        if (line.minimum < 0) line = {xq / qq, 0};
        const float error = xx + line.scale * line.scale * qq + n * line.minimum * line.minimum -
                            2 * line.scale * xq + 2 * line.minimum * x -
                            2 * line.scale * line.minimum * q;
        if (line.scale > 0 && error < min_error) {
            min_error = error;
            best = line;
        }
    }
    return best;
}

}  // namespace plait
