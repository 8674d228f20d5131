// Arguments of the attention kernels, and what memory they need.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/rows/cache_layout.h"

namespace plait::cpu {

// plait::PositionBias, number for number.
enum BiasKind : uint8_t { kNoBias = 0, kAlibi = 1, kBuckets = 2 };

struct AttendArgs {
    Ref q, y;                      // [n, heads, key_dim], [n, heads, value_dim]
    Ref keys, values;              // rows of the caches, or of values of the graph: f32
    Ref token_begin;               // [sequences + 1] i32
    Ref runs, run_begin;           // [., 4], [sequences + 1] i32; a sequence's in order of keys
    Ref first, last;               // [n] i32: the keys a token sees
    Ref sinks;                     // [heads]
    Ref positions;                 // [n, position_stride] i32, of which the first counts
    Ref key_positions, key_begin;  // by key of each sequence, [sequences + 1] i32
    Ref bias;                      // [buckets, heads]
    Ref splits;  // sums of the keys' splits: split_floats() for each task of attend_splits
    uint8_t has_sinks;
    uint8_t values_in_keys;  // a value is the beginning of its key, at the same place
    uint8_t bias_kind;
    uint8_t both_directions;  // of buckets: later keys have half of them
    int32_t buckets;
    int32_t max_distance;  // of buckets: farther keys share the last one
    int32_t position_stride;
    float max_bias;  // of alibi
    int32_t heads;
    int32_t kv_heads;
    int32_t key_dim;
    int32_t value_dim;
    int32_t tile_queries;  // that share what is read, at most
    int32_t threads;
    int64_t splits_floats;  // room there; 0: a tile sums all its keys
    float scale;
    float softcap;  // 0: none
    CacheLayout key_cache, value_cache;
};

// Keys are summed in blocks of this many, aligned to ordinals.
constexpr int64_t kKeyBlock = 32;
// Sums over this many ordinals are closed and merged, in order.
constexpr int64_t kKeySplit = 512;
constexpr int32_t kTileQueries = 64;

// What is known of a softmax over some keys; `any` tells whether there was one.
struct SoftmaxSum {
    float most;
    float sum;
    int32_t any;
};

PLAIT_INLINE int64_t whole_registers(int64_t value_dim) { return (value_dim + 15) / 16 * 16; }

// Distances that a head's list of biases has.
PLAIT_INLINE int64_t bias_row(const AttendArgs& args) {
    return args.bias_kind == kBuckets ? 2 * static_cast<int64_t>(args.max_distance) + 1 : 0;
}

// What a worker's scratch holds; offsets in floats.
struct AttendScratch {
    int64_t rows, positions, scores, partial, lanes, total, biases, queries, end;
};

PLAIT_INLINE AttendScratch attend_scratch(const AttendArgs& args) {
    constexpr int64_t kQueryFloats = 16;
    const int64_t width = whole_registers(args.value_dim);
    int64_t widest = width;
    if (widest < args.key_cache.head_elements) widest = args.key_cache.head_elements;
    if (widest < args.value_cache.head_elements) widest = args.value_cache.head_elements;
    const int64_t n = args.tile_queries;
    AttendScratch s;
    s.rows = 0;                                 // [kKeyBlock, widest]
    s.positions = s.rows + kKeyBlock * widest;  // [kKeyBlock]
    s.scores = s.positions + kKeyBlock;         // [n, kKeyBlock]
    s.partial = s.scores + n * kKeyBlock;       // [n, width]
    s.lanes = s.partial + n * width;            // [n, 16]
    s.total = s.lanes + n * 16;                 // [n, width]
    s.biases = s.total + n * width;             // [n, bias_row]
    s.queries = s.biases + (n * bias_row(args) + 15) / 16 * 16;
    s.end = s.queries + n * kQueryFloats;
    return s;
}

// What a split of a tile's keys leaves for the merge: [queries, width], [queries] SoftmaxSum.
PLAIT_INLINE int64_t split_floats(int64_t queries, int64_t value_dim) {
    const int64_t sums = static_cast<int64_t>(sizeof(SoftmaxSum) / sizeof(float));
    return (queries * (whole_registers(value_dim) + sums) + 15) / 16 * 16;
}

}  // namespace plait::cpu
