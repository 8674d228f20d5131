// Arguments of the attention kernels.
#pragma once

#include "backend/cpu/kernels/cache_layout.h"
#include "backend/cpu/kernels/frame.h"

namespace plait::cpu {

struct AttendArgs {
    Ref q, y;                     // [n, heads, key_dim], [n, heads, value_dim]
    Ref keys, values;             // rows of the caches
    Ref token_begin;              // [sequences + 1] i32
    Ref runs, run_begin;          // [., 4], [sequences + 1] i32; a sequence's runs in order of keys
    Ref first, last;              // [n] i32: the keys a token sees
    Ref sinks;                    // [heads]
    uint8_t has_sinks;
    int32_t heads;
    int32_t kv_heads;
    int32_t key_dim;
    int32_t value_dim;
    int32_t tile_tokens;          // of one sequence, whose queries share what is read
    float scale;
    float softcap;                // 0: none
    CacheLayout key_cache, value_cache;
};

// Keys are summed in blocks of this many, aligned to ordinals.
constexpr int64_t kKeyBlock = 32;
// Sums over this many ordinals are closed and merged, in order.
constexpr int64_t kKeySplit = 1024;
// Queries that a tile has at most, unless the heads of one token are more.
constexpr int32_t kTileQueries = 64;

// What a worker's scratch holds; offsets in floats. value_width: value_dim in whole registers.
struct AttendScratch {
    int64_t queries, value_width;
    int64_t rows, scores, partial, total, state, end;
};

PLAIT_INLINE AttendScratch attend_scratch(const AttendArgs& args) {
    AttendScratch s;
    s.queries = static_cast<int64_t>(args.tile_tokens) * (args.heads / args.kv_heads);
    s.value_width = (args.value_dim + 15) / 16 * 16;
    int64_t widest = s.value_width;
    if (widest < args.key_cache.head_elements) widest = args.key_cache.head_elements;
    if (widest < args.value_cache.head_elements) widest = args.value_cache.head_elements;
    s.rows = 0;                                       // [kKeyBlock, widest]
    s.scores = s.rows + kKeyBlock * widest;           // [queries, kKeyBlock]
    s.partial = s.scores + s.queries * kKeyBlock;     // [queries, value_width]
    s.total = s.partial + s.queries * s.value_width;  // [queries, value_width]
    s.state = s.total + s.queries * s.value_width;    // QueryState of each
    s.end = s.state + s.queries * 16;
    return s;
}

}  // namespace plait::cpu
