// Buckets of distances for relative position biases. Kernels include this header too, so it may contain
// no function that a linker could share between instruction sets.
#pragma once

#include <stdint.h>

#include "base/inline.h"

namespace plait {

// The first distance of a bucket. T5, arXiv:1910.10683: half of the buckets of a direction hold one
// distance each, the others grow by a constant ratio up to max_distance, and the last one holds all
// greater distances. Slightly less than the exact threshold, so that rounding cannot exclude a distance
// that is equal to it.
PLAIT_INLINE double bucket_begin(int32_t bucket, int32_t buckets, int32_t max_distance) {
    const int32_t exact = buckets / 2;
    if (bucket <= exact) return bucket;
    const double turns = static_cast<double>(bucket - exact) / (buckets - exact);
    const double ratio = static_cast<double>(max_distance) / exact;
    return exact * __builtin_pow(ratio, turns) * (1.0 - 1e-6);
}

}  // namespace plait
