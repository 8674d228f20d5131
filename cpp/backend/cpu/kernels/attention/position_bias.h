// Position biases, which attention adds to scores.
#pragma once

#include "backend/cpu/kernels/attention/attend.h"
#include "backend/shared/positions.h"

namespace plait::cpu::PLAIT_ISA {

// ALiBi, arXiv:2108.12409: a head's penalty per position between query and key. If the number of
// heads is not a power of two, the heads past the largest one below it use every second slope of
// the next one.
PLAIT_INLINE float alibi_slope(double max_bias, int64_t head, int64_t heads) {
    int64_t whole = 1;
    while (whole <= heads / 2) whole *= 2;
    const double turns =
        head < whole ? static_cast<double>(head) + 1.0 : static_cast<double>(head - whole) + 0.5;
    return static_cast<float>(__builtin_exp2(-max_bias * turns / static_cast<double>(whole)));
}

// Lists a head's biases by key position - position, from -max_distance to max_distance. `weights`
// is [buckets, heads] and starts at the head's column.
static inline void list_biases(const AttendArgs& args, const float* weights, float* biases) {
    const int32_t buckets = args.both_directions ? args.buckets / 2 : args.buckets;
    const auto bias = [&](int32_t bucket) {
        return weights[static_cast<int64_t>(bucket) * args.heads];
    };
    int32_t bucket = 0;
    double next = bucket_begin(1, buckets, args.max_distance);
    for (int32_t distance = 0; distance <= args.max_distance; ++distance) {
        while (bucket + 1 < buckets && distance >= next)
            next = bucket_begin(++bucket + 1, buckets, args.max_distance);
        biases[args.max_distance - distance] = bias(bucket);
        if (distance == 0) continue;
        biases[args.max_distance + distance] = bias(args.both_directions ? buckets + bucket : 0);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
