// Arguments of rope and rope_table.
#pragma once

<<<<<<< HEAD:cpp/backend/cpu/kernels/rows/rope.h
#include "backend/cpu/kernels/frame.h"
#include "backend/shared/rotary.h"

namespace plait::cpu {

// Arguments of the rotation kernel.
=======
#include <math.h>
#include <stdint.h>

#include "backend/cpu/kernels/common/frame.h"
#include "base/inline.h"

namespace plait::cpu {

// Parameters of the angle by which one position rotates a pair of elements of a head.
struct RopeFrequencies {
    double base;
    double scale;          // linear interpolation of positions
    double extrapolation;  // the share of YaRN; 0 for none
    double low, high;  // YaRN: pairs below `low` keep their frequency, those above `high` do not
    int64_t n_rot;
};

// base^(-2 pair / n_rot) / factor, scaled by the interpolation: by `scale` for every pair or, with
// YaRN (arXiv:2309.00071, section 3.2), by a ramp over the pairs from 1 to `scale`.
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

// Rotates the heads of activations.
>>>>>>> fin-kernels:cpp/backend/cpu/kernels/attention/rope.h
struct RopeArgs {
    Ref x, table, y;  // [n, heads, width], [n, n_rot / 2, 2] (cos, sin), like x; y may be x
    uint8_t extent;
    uint8_t interleaved;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t n_rot;
};

// Tabulates the cosines and sines of rotations.
struct RopeTableArgs {
    Ref positions, factors, y;  // [n, axes] i32, [n_rot / 2], [n, n_rot / 2, 2]
    uint8_t has_factors;
    uint8_t extent;
    int64_t fixed_rows;
    int64_t axes;
    int32_t sections[4];  // pairs per axis; if all are zero, only axis 0 counts
    double magnitude;
    RopeFrequencies frequencies;
};

}  // namespace plait::cpu
