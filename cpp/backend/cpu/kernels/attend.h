// Arguments of the attention kernels.
#pragma once

#include "backend/cpu/kernels/cache_layout.h"
#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

// plait::PositionBias, number for number.
enum BiasKind : uint8_t { kNoBias = 0, kAlibi = 1, kBuckets = 2 };

struct AttendArgs {
    Ref q, y;             // [n, heads, key_dim], [n, heads, value_dim]
    Ref keys, values;     // rows of the caches, or of values of the graph: f32
    Ref token_begin;      // [sequences + 1] i32
    Ref runs, run_begin;  // [., 4], [sequences + 1] i32; a sequence's runs in order of keys
    Ref first, last;      // [n] i32: the keys a token sees
    Ref sinks;            // [heads]
    Ref positions;        // [n, position_stride] i32, of which the first counts
    Ref key_positions, key_begin;  // by key of each sequence, [sequences + 1] i32
    Ref bias;                      // [buckets, heads]
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
    int32_t tile_heads;   // of one kv head's, and
    int32_t tile_tokens;  // of one sequence, whose queries share what is read
    float scale;
    float softcap;  // 0: none
    CacheLayout key_cache, value_cache;
};

// Keys are summed in blocks of this many, aligned to ordinals.
constexpr int64_t kKeyBlock = 32;
// Sums over this many ordinals are closed and merged, in order.
constexpr int64_t kKeySplit = 1024;
// Queries that a tile has at most.
constexpr int32_t kTileQueries = 64;

// Distances that a head's list of biases has.
PLAIT_INLINE int64_t bias_row(const AttendArgs& args) {
    return args.bias_kind == kBuckets ? 2 * static_cast<int64_t>(args.max_distance) + 1 : 0;
}

// What a worker's scratch holds; offsets in floats. value_width: value_dim in whole registers.
struct AttendScratch {
    int64_t queries, value_width;
    int64_t rows, positions, scores, partial, total, biases, state, end;
};

PLAIT_INLINE AttendScratch attend_scratch(const AttendArgs& args) {
    AttendScratch s;
    s.queries = static_cast<int64_t>(args.tile_tokens) * args.tile_heads;
    s.value_width = (args.value_dim + 15) / 16 * 16;
    int64_t widest = s.value_width;
    if (widest < args.key_cache.head_elements) widest = args.key_cache.head_elements;
    if (widest < args.value_cache.head_elements) widest = args.value_cache.head_elements;
    s.rows = 0;                                       // [kKeyBlock, widest]
    s.positions = s.rows + kKeyBlock * widest;        // [kKeyBlock]
    s.scores = s.positions + kKeyBlock;               // [queries, kKeyBlock]
    s.partial = s.scores + s.queries * kKeyBlock;     // [queries, value_width]
    s.total = s.partial + s.queries * s.value_width;  // [queries, value_width]
    s.biases = s.total + s.queries * s.value_width;   // [tile_heads, bias_row(args)]
    s.state = s.biases + (args.tile_heads * bias_row(args) + 15) / 16 * 16;  // QueryState of each
    s.end = s.state + s.queries * 16;
    return s;
}

}  // namespace plait::cpu
