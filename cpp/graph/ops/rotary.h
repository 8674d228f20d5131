// Rotations of heads: by position, arXiv:2104.09864, and by a Hadamard matrix.
#pragma once

#include "graph/op_info.h"

namespace plait {

struct Rope {
    int n_rot = 0;  // leading elements of a head that are rotated
    double base = 10000.0;
    double scale = 1.0;        // positions are multiplied by this (linear scaling: 1 / factor)
    bool interleaved = false;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    // YaRN, arXiv:2309.00071. Off if extrapolation is 0.
    double extrapolation = 0.0;
    double magnitude = 1.0;  // multiplies cos and sin
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    int64_t n_ctx_original = 0;
    int sections[4] = {0, 0, 0, 0};  // M-RoPE: pairs per axis; all zero: one axis
    bool in_turn =
        false;  // the axes alternate over the pairs; otherwise the pairs of an axis adjoin
    bool operator==(const Rope&) const = default;
};

// How the heads in the rows of a cache are rotated.
struct StoredHeads {
    Rope rope;
    int n_heads;
    int head_dim;
    int begin = 0;     // elements of a head before the rotated ones
    int hadamard = 0;  // block size of the Hadamard transform that the rows store; 0: none
    bool operator==(const StoredHeads&) const = default;
};

namespace ops {

// cos and sin of every position and pair, computed once for all layers.
struct RopeTable {
    Operand positions;        // [n] or [n, axes] i32
    OptionalOperand factors;  // [n_rot/2], divide the frequencies
    plait::Rope rope;
    static constexpr OpInfo kInfo{.name = "rope_table"};
    static constexpr auto kOperands = operands(&RopeTable::positions, &RopeTable::factors);
    bool operator==(const RopeTable&) const = default;
};

// Rotates the leading n_rot elements of each head.
struct Rope {
    Operand x;      // [n, h, d]
    Operand table;  // [n, n_rot/2, 2], from RopeTable
    int n_rot;
    bool interleaved;
    static constexpr OpInfo kInfo{.name = "rope", .row_wise = true};
    static constexpr auto kOperands = operands(&Rope::x, &Rope::table);
    bool operator==(const Rope&) const = default;
};

// Multiplies each `block` elements of a head by the orthonormal Walsh-Hadamard matrix, which is its
// own inverse. A large channel is spread over its block, so that rounding to a few bits loses less.
// QuaRot, Ashkboos et al. 2024, arXiv:2404.00456
struct Hadamard {
    Operand x;  // [n, h, d]
    int block;  // a power of two that divides d
    static constexpr OpInfo kInfo{.name = "hadamard", .row_wise = true};
    static constexpr auto kOperands = operands(&Hadamard::x);
    bool operator==(const Hadamard&) const = default;
};

// Rotates keys in a cache: row rows[i] by deltas[i] positions, including the magnitude.
struct RotateRows {
    Operand storage;          // [rows, h*d']
    Operand rows, deltas;     // [moves] i32
    OptionalOperand factors;  // [n_rot/2]
    StoredHeads heads;
    static constexpr OpInfo kInfo{.name = "rotate_rows", .writes_storage = true, .in_place = true};
    static constexpr auto kOperands = operands(&RotateRows::storage, &RotateRows::rows,
                                               &RotateRows::deltas, &RotateRows::factors);
    bool operator==(const RotateRows&) const = default;
};

}  // namespace ops

// [n] or [n, axes] positions -> [n, n_rot/2, 2]
Value rope_table(Value positions, const Rope& rope, Value factors = {});
Value rope(Value x, Value table, const Rope& rope);  // [n, h, d], [n, n_rot/2, 2] -> [n, h, d]
Value hadamard(Value x, int block);                  // [n, h, d] -> [n, h, d]
// [rows, h*d'], [moves] i32, [moves] i32
Value rotate_rows(Value storage, Value rows, Value deltas, const StoredHeads& heads,
                  Value factors = {});

}  // namespace plait
