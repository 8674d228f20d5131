// The angle by which one position turns a pair of a head.
#pragma once

#include <math.h>
#include <stdint.h>

#include "base/inline.h"

namespace plait::cpu {

struct RopeFrequencies {
    double base;
    double scale;          // linear interpolation of positions
    double extrapolation;  // YaRN's share; 0: none
    double low, high;      // YaRN: pairs below keep their frequency; those above do not
    int64_t n_rot;
};

// base^(-2 i / n_rot) / factor, times what interpolation leaves of it: `scale` throughout, or by
// YaRN (arXiv:2309.00071 section 3.2) a ramp over pairs from 1 to `scale`.
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

}  // namespace plait::cpu
