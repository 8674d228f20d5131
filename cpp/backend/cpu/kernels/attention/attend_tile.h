// A tile of attention: query heads of one or more kv heads, for a few tokens of one sequence, or of
// several sequences that share their first keys.
#pragma once

#include "backend/cpu/kernels/attention/cache.h"
#include "backend/cpu/kernels/attention/key_blocks.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kScoreRegisters =
    static_cast<int>(kKeyBlock) / F32::kLanes;  // registers of a block's scores
constexpr float kMinusInfinity = -__builtin_inff();

struct Query {
    const float* q;
    const float* biases;  // of bucket biases, indexed by key position - position
    float slope;          // of ALiBi
    int32_t position;
    int32_t first, last;  // it sees keys first <= key < last
    uint32_t visible;     // bits of the current block's lanes that it sees
    float factor;         // by which the current block scales the sums so far
    SoftmaxSum partial, total;
};
static_assert(sizeof(Query) <= 16 * sizeof(float));

// Offsets of a block's rows from row 0, in bytes: of keys by lane, of values by entry. Missing
// lanes and entries repeat the offset of another.
struct BlockRows {
    int64_t key[kKeyBlock];
    int64_t value[kKeyBlock];
};

static inline void locate(const AttendArgs& args, const KeyBlock& block, BlockRows& rows) {
    const int64_t key_bytes = args.key_cache.row_bytes;
    const int64_t value_bytes = args.value_cache.row_bytes;
    for (int32_t e = 0; e < block.count; ++e) rows.value[e] = block.row[e] * value_bytes;
    for (int64_t e = block.count; e < kKeyBlock; ++e) rows.value[e] = rows.value[0];
    if (block.count < kKeyBlock)
        for (int64_t i = 0; i < kKeyBlock; ++i) rows.key[i] = block.row[0] * key_bytes;
    for (int32_t e = 0; e < block.count; ++e) rows.key[block.lane[e]] = block.row[e] * key_bytes;
}

// Rows to prefetch, one at a time between arithmetic: many at once would fill the miss queue and
// stall. They go to the second level cache, since rows a power of two apart would evict each other
// from the first.
struct RowPrefetch {
    const unsigned char* first;
    const int64_t* offset;
    int64_t bytes;  // of each row; 0 for no prefetching

    PLAIT_INLINE_MEMBER void fetch(int64_t i) const {
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(first + offset[i] + at, 0, 2);
    }
};

// The queries of a tile are [tokens, heads]; those of the next kv head of the task start
// `stride` queries later.
struct Tile {
    const AttendArgs& args;
    const unsigned char* keys;  // row 0 of the kv head
    const unsigned char* values;
    int64_t tokens, heads;
    int64_t stride;
    int64_t width;                 // elements of a value, rounded up to whole registers
    const int32_t* key_positions;  // of the sequence
    float* rows;                   // decoded rows of the current block
    float* squares;                // its keys, transposed (block_scores.cpp)
    float* positions;              // positions of its keys, by lane
    float* scores;                 // [queries, kKeyBlock]
    float* partial;                // [queries, width], sums over the current split
    float* lanes;                  // [queries, 16], partial sums of the weights
    float* total;                  // [queries, width], sums over the closed splits
    Query* query;
    const BlockRows* now;   // of the current block
    const BlockRows* next;  // of the next block, or null

    PLAIT_INLINE_MEMBER int64_t queries() const { return tokens * heads; }
    // Advances by a number of kv heads of the task.
    PLAIT_INLINE_MEMBER void move(int64_t kv_heads) {
        const int64_t n = kv_heads * stride;
        keys += kv_heads * args.key_cache.head_bytes;
        values += kv_heads * args.value_cache.head_bytes;
        partial += n * width;
        lanes += n * 16;
        total += n * width;
        query += n;
    }
};

// The keys of the next block, and its values unless keys contain them.
PLAIT_INLINE RowPrefetch prefetch_keys(const Tile& tile) {
    if (!tile.next) return {tile.keys, nullptr, 0};
    return {tile.keys, tile.next->key, tile.args.key_cache.head_bytes};
}
PLAIT_INLINE RowPrefetch prefetch_values(const Tile& tile) {
    if (!tile.next || tile.args.values_in_keys) return {tile.values, nullptr, 0};
    return {tile.values, tile.next->value, tile.args.value_cache.head_bytes};
}

// With at least this many queries, it is faster to decode and transpose a block once for all of
// them.
constexpr int64_t kManyQueries = 12;

// True if score() decodes the block's keys once for all queries. They are then in tile.rows, by
// entry.
PLAIT_INLINE bool decodes_keys(const Tile& tile, int64_t queries) {
    const DType dtype = tile.args.key_cache.dtype;
    return (!is_float(dtype) && dtype != DType::q8_0) ||
           (dtype != DType::f32 && queries >= kManyQueries);
}

// Computes the scores of queries begin <= i < end, by lane; lanes without a key are unspecified.
void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end);
// Computes partial = partial * factor + sum of p v, for queries begin <= i < end.
void add_values(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end);

}  // namespace plait::cpu::PLAIT_ISA
