// Arguments of the kernels that write and rotate rows of a cache.
#pragma once

#include "backend/cpu/kernels/attention/rope.h"
#include "tensor/dtype_enum.h"

namespace plait::cpu {

// Rotates stored keys.
struct RotateRowsArgs {
    Ref storage, rows, deltas, factors;  // [., row_bytes], [moves] i32, [moves] i32, [n_rot / 2]
    DType dtype;                         // of the storage
    uint8_t has_factors;
    uint8_t interleaved;
    Extent extent;  // of rows and deltas
    int64_t fixed_rows;
    int64_t heads;
    int64_t begin;  // elements of a head before the rotated ones
    int64_t head_bytes;
    int64_t row_bytes;
    RopeFrequencies frequencies;
    double magnitude = 1.0;  // multiplies the rotated elements, also for a delta of 0
    int64_t head_dim;        // elements of a head without padding
    int64_t hadamard;        // block size of the transform that the storage holds; 0: none
};

// The elements of a head that are decoded, rotated and encoded.
struct RotatedPart {
    int64_t offset;    // from the head, in whole blocks of the storage
    int64_t elements;  // in whole blocks
};
PLAIT_INLINE RotatedPart rotated_part(const RotateRowsArgs& args, int64_t block) {
    const int64_t offset = args.hadamard ? 0 : args.begin / block * block;
    const int64_t end = args.hadamard ? args.head_dim : args.begin + args.frequencies.n_rot;
    return {offset, (end - offset + block - 1) / block * block};
}

// Scratch bytes: n_rot / 2 frequencies, their cosines and sines, and the decoded elements of a head
// with padding to whole blocks.
PLAIT_INLINE uint64_t rotate_rows_scratch(const RotateRowsArgs& args) {
    constexpr int64_t kMaxBlock = 32;
    const uint64_t n_rot = static_cast<uint64_t>(args.frequencies.n_rot);
    const uint64_t decoded = static_cast<uint64_t>(rotated_part(args, kMaxBlock).elements);
    return n_rot / 2 * sizeof(double) + (n_rot + decoded) * sizeof(float);
}

// Writes rows of a cache.
struct StoreRowsArgs {
    Ref storage, x, rows;  // [., row_bytes], [n, heads, width], [n] i32
    DType dtype;           // of the storage
    Extent extent;
    int64_t fixed_rows;
    int64_t heads;
    int64_t width;
    int64_t head_elements;  // width padded to whole blocks
    int64_t row_bytes;
    int64_t hadamard;  // block size of a Hadamard transform of the stored heads; 0: none
};

}  // namespace plait::cpu
