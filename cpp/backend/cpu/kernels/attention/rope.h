// Arguments of rope, rope_table, hadamard and temperature.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/shared/positions.h"

namespace plait::cpu {

// Rotates the heads of activations.
struct RopeArgs {
    Ref x, table, y;  // [n, heads, width], [n, n_rot / 2, 2] (cos, sin), like x; y may be x
    Extent extent;
    uint8_t interleaved;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t n_rot;
    int64_t hadamard;  // block size of a Hadamard transform after the rotation; 0: none
};

// Tabulates the cosines and sines of rotations.
struct RopeTableArgs {
    Ref positions, factors, y;  // [n, axes] i32, [n_rot / 2], [n, n_rot / 2, 2]
    uint8_t has_factors;
    Extent extent;
    uint8_t in_turn;  // see axis_of_pair
    int64_t fixed_rows;
    int64_t axes;
    int32_t sections[4];  // pairs per axis; if all are zero, only axis 0 counts
    double magnitude;
    RopeFrequencies frequencies;
};

// Multiplies blocks of heads by a Hadamard matrix.
struct HadamardArgs {
    Ref x, y;  // [n, width]; y may be x
    Extent extent;
    int64_t fixed_rows;
    int64_t width;  // elements of all heads
    int64_t block;
};

// Computes the factor that the queries of each token are multiplied by.
struct TemperatureArgs {
    Ref positions, y;  // [n] i32, [n, 1]
    Extent extent;
    int32_t offset;
    int64_t length;
    int64_t fixed_rows;
    float scale;
};

}  // namespace plait::cpu
