// The mathematics of positions: frequencies of rotary embeddings, slopes of ALiBi, and buckets of
// distances for relative position biases. Kernels include this header too, so it may contain no
// function that a linker could share between instruction sets.
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/inline.h"

namespace plait {

struct RopeFrequencies {
    double base;
    double scale;          // linear interpolation of positions
    double extrapolation;  // YaRN's share; 0: none
    double low, high;  // YaRN: pairs up to `low` keep their frequency, pairs from `high` on do not
    int64_t n_rot;
};

// The angle in radians by which one position rotates a pair: base^(-2 pair / n_rot) / factor,
// scaled by interpolation. `scale` applies to all pairs; with YaRN (arXiv:2309.00071 section 3.2)
// the factor goes from 1 to `scale` between the pairs `low` and `high`.
PLAIT_INLINE double frequency(const RopeFrequencies& rope, int64_t pair, double factor) {
    const double whole =
        pow(rope.base, -2.0 * static_cast<double>(pair) / static_cast<double>(rope.n_rot)) / factor;
    if (rope.extrapolation == 0.0) return whole * rope.scale;
    const double width = rope.high - rope.low > 0.001 ? rope.high - rope.low : 0.001;
    const double along = (static_cast<double>(pair) - rope.low) / width;
    const double kept = 1.0 - (along < 0.0 ? 0.0 : along > 1.0 ? 1.0 : along);
    const double mix = kept * rope.extrapolation;
    return whole * (rope.scale * (1.0 - mix) + mix);
}

// The first distance of a bucket. T5, arXiv:1910.10683: half of the buckets of a direction hold one
// distance each, the others grow by a constant ratio up to max_distance, and the last one holds all
// greater distances. Slightly less than the exact threshold, so that rounding cannot exclude a
// distance that is equal to it.
PLAIT_INLINE double bucket_begin(int32_t bucket, int32_t buckets, int32_t max_distance) {
    const int32_t exact = buckets / 2;
    if (bucket <= exact) return bucket;
    const double turns = static_cast<double>(bucket - exact) / (buckets - exact);
    const double ratio = static_cast<double>(max_distance) / exact;
    return exact * __builtin_pow(ratio, turns) * (1.0 - 1e-6);
}

// Calls body(distance, bucket) for the distances from 0 to max_distance, in order.
template <typename Body>
PLAIT_INLINE void for_each_distance(int32_t buckets, int32_t max_distance, Body body) {
    int32_t bucket = 0;
    double next = bucket_begin(1, buckets, max_distance);
    for (int32_t distance = 0; distance <= max_distance; ++distance) {
        while (bucket + 1 < buckets && distance >= next)
            next = bucket_begin(++bucket + 1, buckets, max_distance);
        body(distance, bucket);
    }
}

// ALiBi, arXiv:2108.12409: the penalty of a head per position between query and key. If the number
// of heads is not a power of two, let 2^k be the largest power of two below it. The first 2^k heads
// have the slopes of a model with 2^k heads; the others use every second slope of a model with 2^(k
// + 1) heads.
PLAIT_INLINE float alibi_slope(double max_bias, int64_t head, int64_t heads) {
    int64_t whole = 1;
    while (whole <= heads / 2) whole *= 2;
    const double turns =
        head < whole ? static_cast<double>(head) + 1.0 : static_cast<double>(head - whole) + 0.5;
    return static_cast<float>(__builtin_exp2(-max_bias * turns / static_cast<double>(whole)));
}

// The axis of positions that rotates a pair; 0 if all sections are 0. Sections repeat if they do
// not cover all pairs. Qwen2-VL, arXiv:2409.12191: the pairs of one axis, then those of the next.
// `in_turn` (Qwen3-VL, arXiv:2511.21631): the axes alternate (time, height, width, time, ...). Once
// an axis has its number of pairs, the pairs in its turn belong to the fourth axis.
PLAIT_INLINE int64_t axis_of_pair(const int32_t* sections, bool in_turn, int64_t pair) {
    const int64_t covered = int64_t{sections[0]} + sections[1] + sections[2] + sections[3];
    if (covered == 0) return 0;
    int64_t at = pair % covered;
    if (in_turn) return at < 3 * int64_t{sections[at % 3]} ? at % 3 : 3;
    int64_t axis = 0;
    while (at >= sections[axis]) at -= sections[axis++];
    return axis;
}

}  // namespace plait
