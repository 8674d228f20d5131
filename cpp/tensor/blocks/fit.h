// Weighted least-squares fits of a group's scale, for the encoders of blocks. For fixed levels q the
// error sum w (x - s q)^2 is minimal at s = sum w x q / sum w q^2, where it equals
// sum w x^2 - (sum w x q)^2 / sum w q^2; a line s q - m has two unknowns instead of one. Alternating
// between levels and scale finds only a local minimum, so the search starts from several scales.
// Every function is defined for NaN and infinities. Groups have a multiple of kLanes values.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/rounding.h"

namespace plait {

inline constexpr float kInfinity = __builtin_inff();

// Partial sums, so that compilers may vectorise without reordering float additions.
inline constexpr int kLanes = 8;

struct Lanes {
    float parts[kLanes] = {};

    PLAIT_INLINE_MEMBER float sum() const {
        float total = 0;
        for (const float part : parts) total += part;
        return total;
    }
};

// A group whose largest magnitude is not above this encodes to zeros, since its scale could be
// subnormal.
inline constexpr float kSmallestFit = 1e-30f;

// Rounds to the nearest integer in [min, max], ties away from zero; NaN gives the integer nearest
// to 0.
PLAIT_INLINE int round_within(float value, int min, int max) {
    if (!(value == value)) value = 0;
    if (value <= static_cast<float>(min)) return min;
    if (value >= static_cast<float>(max)) return max;
    return static_cast<int>(value < 0 ? value - 0.5f : value + 0.5f);
}

// The levels are the integers in [min, max].
struct Integers {
    int min, max;

    // Returns the level with the largest magnitude.
    PLAIT_INLINE_MEMBER float reach() const { return static_cast<float>(-min < max ? max : min); }

    PLAIT_INLINE_MEMBER int count() const { return max - min + 1; }

    // Returns the nearest level; NaN gives a level.
    PLAIT_INLINE_MEMBER float nearest(float value) const {
        constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction bits
        const auto low = static_cast<float>(min), high = static_cast<float>(max);
        value = value > low ? value : low;
        value = value < high ? value : high;
        return (value + kRounds) - kRounds;
    }
};

// The levels are those of a table, in ascending order.
template <int kCount>
struct Table {
    float levels[kCount];

    PLAIT_INLINE_MEMBER float reach() const {
        return magnitude(levels[0]) < levels[kCount - 1] ? levels[kCount - 1] : levels[0];
    }

    PLAIT_INLINE_MEMBER int count() const { return kCount; }

    // Returns the nearest level; NaN gives a level.
    PLAIT_INLINE_MEMBER float nearest(float value) const {
        float found = levels[0];
        for (int i = 1; i < kCount; ++i)
            found = 2 * value >= levels[i - 1] + levels[i] ? levels[i] : found;
        return found;
    }
};

// kIq4Levels of tensor/blocks/iq4.h.
inline constexpr Table<16> kIq4Table{
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};

// A part of a row that shares one scale. `weights` are the importances of the values, not negative.
struct Group {
    const float* values;
    const float* weights;
    int count;
};

// Computes the levels of a group for a scale and returns the weighted sum of squared errors.
template <typename Levels>
PLAIT_INLINE float level_error(const Levels& levels, Group group, float scale, float* found) {
    const float inverse = reciprocal(scale);
    Lanes error;
    for (int i = 0; i < group.count; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            const float value = group.values[i + j];
            const float level = levels.nearest(value * inverse);
            const float rest = value - scale * level;
            found[i + j] = level;
            error.parts[j] += group.weights[i + j] * rest * rest;
        }
    }
    return error.sum();
}

// Returns the scale s for which s times levels is nearest to the values. The sign of s is free.
template <typename Levels>
PLAIT_INLINE float fit_scale(const Levels& levels, Group group) {
    const float largest = extreme(group.values, group.count);
    if (!(magnitude(largest) > kSmallestFit)) return 0;
    float best = 0, max_explained = 0;
    const auto attempt = [&](float inverse) {
        Lanes products, squares;
        for (int i = 0; i < group.count; i += kLanes) {
            for (int j = 0; j < kLanes; ++j) {
                const float value = group.values[i + j];
                const float level = levels.nearest(value * inverse);
                const float weighted = group.weights[i + j] * level;
                products.parts[j] += weighted * value;
                squares.parts[j] += weighted * level;
            }
        }
        const float product = products.sum(), square = squares.sum();
        if (!(square > 0 && product * product > max_explained * square)) return false;
        max_explained = product * product / square;
        best = product / square;
        return true;
    };
    // With few levels, the extreme of a group may belong to a level that is not the last.
    for (int candidate = levels.count() <= 4 ? -12 : 0; candidate < 24; ++candidate) {
        const float reach =
            levels.reach() * (0.7f + 0.03f * static_cast<float>(candidate)) / largest;
        attempt(reach);
        attempt(-reach);
    }
    for (int i = 0; i < 8 && attempt(reciprocal(best)); ++i) {
    }
    return best;
}

struct Line {
    float scale, minimum;  // value = scale * code - minimum
};

// Sums over a group, for a line of codes q: of w, w q, w q^2, w x, w x q and w x^2.
struct LineSums {
    float w, q, qq, x, xq, xx;
};

// Computes codes in [0, max_code] for a line and returns their sums.
PLAIT_INLINE LineSums line_sums(Group group, int max_code, float inverse, float minimum) {
    const Integers levels{0, max_code};
    Lanes w, q, qq, x, xq, xx;
    for (int i = 0; i < group.count; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            const float value = group.values[i + j], weight = group.weights[i + j];
            const float code = levels.nearest((value + minimum) * inverse);
            w.parts[j] += weight;
            q.parts[j] += weight * code;
            qq.parts[j] += weight * code * code;
            x.parts[j] += weight * value;
            xq.parts[j] += weight * value * code;
            xx.parts[j] += weight * value * value;
        }
    }
    return {w.sum(), q.sum(), qq.sum(), x.sum(), xq.sum(), xx.sum()};
}

// Computes the codes of a group for a line and returns the weighted sum of squared errors.
PLAIT_INLINE float line_error(Group group, int max_code, Line line, float* codes) {
    const Integers levels{0, max_code};
    const float inverse = reciprocal(line.scale);
    Lanes error;
    for (int i = 0; i < group.count; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            const float value = group.values[i + j];
            const float code = levels.nearest((value + line.minimum) * inverse);
            const float rest = value - (line.scale * code - line.minimum);
            codes[i + j] = code;
            error.parts[j] += group.weights[i + j] * rest * rest;
        }
    }
    return error.sum();
}

// Returns the line that is nearest to the values, for codes in [0, max_code]. Unless `any_minimum`,
// its scale and minimum are at least 0.
PLAIT_INLINE Line fit_line(Group group, int max_code, bool any_minimum) {
    const Range range = range_of(group.values, group.count);
    const float low = range.min < 0 || any_minimum ? range.min : 0;
    const float span = range.max - low;
    if (!(span > kSmallestFit)) return {0, -low};
    Line best{span / static_cast<float>(max_code), -low};
    double min_error = __builtin_inf();
    const auto attempt = [&](float inverse, float minimum) {
        const LineSums sums = line_sums(group, max_code, inverse, minimum);
        const double w = sums.w, q = sums.q, qq = sums.qq, x = sums.x, xq = sums.xq, xx = sums.xx;
        const double determinant = w * qq - q * q;
        if (!(determinant > 0)) return false;
        double scale = (w * xq - x * q) / determinant, base = (q * xq - qq * x) / determinant;
        if (base < 0 && !any_minimum) {
            scale = xq / qq;
            base = 0;
        }
        const double error = xx + scale * scale * qq + w * base * base - 2 * scale * xq +
                             2 * base * x - 2 * scale * base * q;
        if (!(scale > 0 && error < min_error)) return false;
        min_error = error;
        best = {static_cast<float>(scale), static_cast<float>(base)};
        return true;
    };
    for (int candidate = 0; candidate < 24; ++candidate) {
        const float reach =
            static_cast<float>(max_code) * (0.85f + 0.03f * static_cast<float>(candidate)) / span;
        attempt(reach, -low);
        attempt(reach, -low - 0.5f * (span - static_cast<float>(max_code) / reach));
    }
    for (int i = 0; i < 8 && attempt(reciprocal(best.scale), best.minimum); ++i) {
    }
    return best;
}

}  // namespace plait
