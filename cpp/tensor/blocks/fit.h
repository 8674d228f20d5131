// How the encoders of blocks with groups find a group's scale: least squares over the codes that a
// few candidates round to. For fixed codes q the error sum (x - s q)^2 is least at
// s = sum x q / sum q^2, where it is sum x^2 - (sum x q)^2 / sum q^2; a line s q - m is the same
// with two unknowns. Codes and scale are each other's best answer only locally, so the search starts
// from several scales. Every function is defined for NaN and infinities too.
#pragma once

#include "base/inline.h"
#include "tensor/blocks/rounding.h"

namespace plait {

// Nearest integer in [least, most], halves away from zero; NaN gives the one nearest to 0.
PLAIT_INLINE int round_within(float value, int least, int most) {
    if (!(value == value)) value = 0;
    if (value <= static_cast<float>(least)) return least;
    if (value >= static_cast<float>(most)) return most;
    return static_cast<int>(value < 0 ? value - 0.5f : value + 0.5f);
}

// Below this a group counts as zero: a scale would be no normal number.
inline constexpr float kSmallestFit = 1e-30f;

// The s for which s * q, q integers in [-steps, steps - 1], is nearest to the values; the extreme
// one may set either sign.
PLAIT_INLINE float fit_scale(const float* values, int count, int steps) {
    const float largest = extreme(values, count);
    if (!(magnitude(largest) > kSmallestFit)) return 0;
    float best = 0, most_explained = 0;
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
        if (qq > 0 && xq * xq > most_explained * qq) {
            most_explained = xq * xq / qq;
            best = xq / qq;
        }
    }
    return best;
}

struct Line {
    float scale, minimum;  // value = scale * code - minimum, both at least 0
};

// The line for which codes in [0, most] are nearest to the values.
PLAIT_INLINE Line fit_line(const float* values, int count, int most) {
    const Range range = range_of(values, count);
    const float least = range.least < 0 ? range.least : 0;
    const float span = range.most - least;
    if (!(span > kSmallestFit)) return {0, -least};
    Line best{0, 0};
    float least_error = 3.402823466e+38f;
    for (int candidate = -10; candidate <= 10; ++candidate) {
        const float inverse =
            (static_cast<float>(most) + 0.1f * static_cast<float>(candidate)) / span;
        float x = 0, q = 0, xq = 0, qq = 0, xx = 0;
        for (int i = 0; i < count; ++i) {
            const auto code =
                static_cast<float>(round_within((values[i] - least) * inverse, 0, most));
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
        if (line.scale > 0 && error < least_error) {
            least_error = error;
            best = line;
        }
    }
    return best;
}

}  // namespace plait
