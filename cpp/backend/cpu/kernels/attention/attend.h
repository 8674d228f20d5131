// Arguments of the attention kernels, and the memory that they need.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "backend/shared/cache_layout.h"

namespace plait::cpu {

struct AttendArgs {
    Ref q, y;             // [n, heads, key_dim], [n, heads, value_dim]
    Ref keys, values;     // rows of the caches, or f32 values of the graph
    Ref token_begin;      // [sequences + 1] i32
    Ref runs, run_begin;  // [., 4], [sequences + 1] i32; runs of a sequence in key order
    Ref first, last;      // [n] i32: the token sees keys first <= key < last
    Ref sinks;            // [heads]
    Ref positions;        // [n, position_stride] i32; only the first of a token is used
    Ref key_positions,
        key_begin;  // [.] i32, positions of each sequence's keys; [sequences + 1] i32
    Ref bias;       // [buckets, heads]
    Ref splits;     // sums over splits of the keys: split_floats() floats per task of attend_splits
    uint8_t has_sinks;
    uint8_t values_in_keys;  // a value is the beginning of its key, in the same memory
    PositionBias bias_kind;
    uint8_t both_directions;  // half of the buckets are for later keys
    int32_t buckets;
    int32_t max_distance;  // keys at least this far share the last bucket
    int32_t position_stride;
    float max_bias;  // of alibi
    int32_t heads;
    int32_t kv_heads;
    int32_t key_dim;
    int32_t value_dim;
    int32_t tile_queries;  // max queries of a tile, which share the keys and values that are read
    int32_t threads;
    int32_t hadamard;       // block size of a Hadamard transform of the result; 0: none
    int64_t splits_floats;  // size of `splits`; if 0, a tile sums all its keys
    float scale;
    float softcap;  // 0 for none
    CacheLayout key_cache, value_cache;
};

// A sequence's keys are numbered by ordinals. Sums run over blocks of this many ordinals.
constexpr int64_t kKeyBlock = 32;
// Partial sums over this many ordinals are closed and merged into the total, in order.
constexpr int64_t kKeySplit = 512;
constexpr int32_t kTileQueries = 128;

// The softmax statistics over some keys.
struct SoftmaxSum {
    float max;  // of their scores
    float sum;  // of exp(score - max)
    int32_t has_keys;
};

PLAIT_INLINE int64_t whole_registers(int64_t value_dim) { return (value_dim + 15) / 16 * 16; }

// The number of distances for which a head has a bias.
PLAIT_INLINE int64_t bias_row(const AttendArgs& args) {
    return args.bias_kind == PositionBias::buckets ? 2 * int64_t{args.max_distance} + 1 : 0;
}

// The parts of a worker's scratch, as offsets in floats.
struct AttendScratch {
    int64_t rows, squares, positions, scores, partial, lanes, total, biases, queries, end;
};

PLAIT_INLINE AttendScratch attend_scratch(const AttendArgs& args) {
    constexpr int64_t kQueryFloats = 16;
    const int64_t width = whole_registers(args.value_dim);
    int64_t widest = width;
    if (widest < args.key_cache.head_elements) widest = args.key_cache.head_elements;
    if (widest < args.value_cache.head_elements) widest = args.value_cache.head_elements;
    const int64_t n = args.tile_queries;
    AttendScratch s;
    s.rows = 0;                                                           // [kKeyBlock, widest]
    s.squares = s.rows + kKeyBlock * widest;                              // [kKeyBlock, key_dim]
    s.positions = s.squares + kKeyBlock * whole_registers(args.key_dim);  // [kKeyBlock]
    s.scores = s.positions + kKeyBlock;                                   // [n, kKeyBlock]
    s.partial = s.scores + n * kKeyBlock;                                 // [n, width]
    s.lanes = s.partial + n * width;                                      // [n, 16]
    s.total = s.lanes + n * 16;                                           // [n, width]
    s.biases = s.total + n * width;                                       // [n, bias_row]
    s.queries = s.biases + (n * bias_row(args) + 15) / 16 * 16;
    s.end = s.queries + n * kQueryFloats;
    return s;
}

// Floats that a split of a tile's keys stores for the merge: [queries, width], then [queries]
// SoftmaxSum.
PLAIT_INLINE int64_t split_floats(int64_t queries, int64_t value_dim) {
    const int64_t sums = static_cast<int64_t>(sizeof(SoftmaxSum) / sizeof(float));
    return (queries * (whole_registers(value_dim) + sums) + 15) / 16 * 16;
}

}  // namespace plait::cpu
