// The encoders of caches. Those of legacy.h and iq4.h take the scale of a block from its extreme
// values alone; these try a few scales near that one, keep the levels that are closest to the
// values, and store the least-squares scale for them (see fit.h). Four attempts remove 11 % of the
// squared error of normally distributed values, and twenty would remove 12 %. Values without a fit
// (all zero, NaN, infinite) and 8-bit blocks are encoded as in legacy.h.
#pragma once

#include <cstdint>

#include "base/inline.h"
#include "tensor/blocks/fit.h"
#include "tensor/blocks/pack.h"
#include "tensor/half.h"

namespace plait {

// The best of several attempts at a block of 32 values.
struct ClosestFit {
    float explained = 0;  // squares of the values that the levels explain: the more, the less error
    float scale = 0, minimum = 0;
    float levels[32];  // or codes, where there is a minimum

    PLAIT_INLINE_MEMBER bool accept(float now_explained, const float* now_levels) {
        if (!(now_explained > explained && now_explained < kInfinity)) return false;
        explained = now_explained;
        for (int i = 0; i < 32; ++i) levels[i] = now_levels[i];
        return true;
    }

    PLAIT_INLINE_MEMBER void round(int* integers) const {
        for (int i = 0; i < 32; ++i) integers[i] = static_cast<int>(levels[i]);
    }
};

// Blocks with a scale. Each of `reaches` is the level that the value with the largest magnitude
// would have.
template <int kAttempts, typename Levels, typename Block>
PLAIT_INLINE void encode_closest_scale(const Levels& levels, const float (&reaches)[kAttempts],
                                       const float* values, Block& block) {
    const float largest = extreme(values, 32);
    ClosestFit best;
    for (const float reach : reaches) {
        const float inverse = reciprocal(largest / reach);
        float found[32];
        Lanes products, squares;
        for (int i = 0; i < 32; i += kLanes) {
            for (int j = 0; j < kLanes; ++j) {
                const float level = levels.nearest(values[i + j] * inverse);
                found[i + j] = level;
                products.parts[j] += level * values[i + j];
                squares.parts[j] += level * level;
            }
        }
        const float product = products.sum(), square = squares.sum();
        if (best.accept(product * product / square, found)) best.scale = product / square;
    }
    if (best.explained == 0) return encode(values, block);
    int integers[32];
    best.round(integers);
    pack(f32_to_f16(best.scale), integers, block);
}

// Blocks with a scale and a minimum. Each of `spans` is the number of steps from the smallest value
// to the largest.
template <int kAttempts, typename Block>
PLAIT_INLINE void encode_closest_line(int max_code, const float (&spans)[kAttempts],
                                      const float* values, Block& block) {
    const Integers codes{0, max_code};
    const Range range = range_of(values, 32);
    const float centre = 0.5f * range.min + 0.5f * range.max;
    const float middle = 0.5f * static_cast<float>(max_code);
    ClosestFit best;
    for (const float span : spans) {
        const float inverse = reciprocal((range.max - range.min) / span);
        float found[32];
        Lanes x, q, xq, qq;
        for (int i = 0; i < 32; i += kLanes) {
            for (int j = 0; j < kLanes; ++j) {
                const float value = values[i + j] - centre;
                const float code = codes.nearest(value * inverse + middle);
                found[i + j] = code;
                x.parts[j] += value;
                q.parts[j] += code;
                xq.parts[j] += value * code;
                qq.parts[j] += code * code;
            }
        }
        const float sum_x = x.sum(), sum_q = q.sum();
        const float covariance = 32 * xq.sum() - sum_x * sum_q;
        const float variance = 32 * qq.sum() - sum_q * sum_q;
        if (!best.accept(covariance * covariance / variance, found)) continue;
        best.scale = covariance / variance;
        best.minimum = centre + (sum_x - best.scale * sum_q) / 32;
    }
    if (best.explained == 0) return encode(values, block);
    int integers[32];
    best.round(integers);
    pack(f32_to_f16(best.scale), f32_to_f16(best.minimum), integers, block);
}

PLAIT_INLINE void encode_closest(const float* values, BlockQ8_0& block) { encode(values, block); }

PLAIT_INLINE void encode_closest(const float* values, BlockQ4_0& block) {
    constexpr float kReaches[] = {-8.6f, -8.2f, -7.8f, -7.0f};
    encode_closest_scale(Integers{-8, 7}, kReaches, values, block);
}

PLAIT_INLINE void encode_closest(const float* values, BlockQ5_0& block) {
    constexpr float kReaches[] = {-16.6f, -16.2f, -15.8f, -15.0f};
    encode_closest_scale(Integers{-16, 15}, kReaches, values, block);
}

PLAIT_INLINE void encode_closest(const float* values, BlockQ4_1& block) {
    constexpr float kSpans[] = {14.4f, 15.0f, 15.3f, 15.9f};
    encode_closest_line(15, kSpans, values, block);
}

PLAIT_INLINE void encode_closest(const float* values, BlockQ5_1& block) {
    constexpr float kSpans[] = {30.4f, 31.0f, 31.3f, 31.9f};
    encode_closest_line(31, kSpans, values, block);
}

// The levels are not symmetric, so the largest magnitude may also belong to the last one.
PLAIT_INLINE void encode_closest(const float* values, BlockIQ4_NL& block) {
    constexpr float kReaches[] = {-135, -127, -119, -111, 113};
    encode_closest_scale(kIq4Table, kReaches, values, block);
}

}  // namespace plait
