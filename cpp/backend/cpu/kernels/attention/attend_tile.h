// A tile of attention: the heads that share a kv head, for a few tokens of one sequence.
#pragma once

#include "backend/cpu/kernels/attention/key_blocks.h"
#include "backend/cpu/kernels/rows/cache.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kParts = static_cast<int>(kKeyBlock) / F32::kLanes;  // registers of a block's scores
constexpr float kMinusInfinity = -__builtin_inff();

struct Query {
    const float* q;
    const float* biases;  // of buckets, by key position - position
    float slope;          // of alibi
    int32_t position;
    int32_t first, last;  // keys it sees
    uint32_t visible;     // lanes of the current block
    float factor;         // by which the current block scales what came before
    SoftmaxSum partial, total;
};
static_assert(sizeof(Query) <= 16 * sizeof(float));

// Where a block's rows begin, in bytes from row 0: of keys by lane, of values by entry. Lanes and
// entries that it lacks have another's.
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

// Rows that will be needed soon, asked for one by one between arithmetic: many at once would fill
// the queue of misses and stop it. Into the second cache, as rows a power of two apart would push
// each other out of the first.
struct Ahead {
    const unsigned char* first;
    const int64_t* offset;
    int64_t bytes;  // of each; 0: nothing to ask for

    PLAIT_INLINE_MEMBER void fetch(int64_t i) const {
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(first + offset[i] + at, 0, 2);
    }
};

// Its queries are [tokens, heads].
struct Tile {
    const AttendArgs& args;
    const unsigned char* keys;  // of the kv head, in row 0
    const unsigned char* values;
    int64_t tokens, heads;
    int64_t width;                 // of a value, in whole registers
    const int32_t* key_positions;  // of the sequence
    float* rows;                   // of the current block, where they are decoded
    float* positions;              // of its keys, by lane
    float* scores;                 // [queries, kKeyBlock]
    float* partial;                // [queries, width], sums of the current split
    float* lanes;                  // [queries, 16], the partial sums of weights
    float* total;                  // [queries, width], sums of the splits before
    Query* query;
    const BlockRows* now;   // of the current block,
    const BlockRows* next;  // and of the one after it, or null

    PLAIT_INLINE_MEMBER int64_t queries() const { return tokens * heads; }
    // To another kv head of the task, so many further.
    PLAIT_INLINE_MEMBER void move(int64_t kv_heads) {
        const int64_t n = kv_heads * queries();
        keys += kv_heads * args.key_cache.head_bytes;
        values += kv_heads * args.value_cache.head_bytes;
        partial += n * width;
        lanes += n * 16;
        total += n * width;
        query += n;
    }
};

// Queries from which on it pays to decode a block once and for all.
constexpr int64_t kManyQueries = 12;

// Whether the block's keys are decoded, once for all queries, and stay in tile.rows by entry.
PLAIT_INLINE bool decodes_keys(const Tile& tile, int64_t queries) {
    const DType dtype = tile.args.key_cache.dtype;
    return (!is_float(dtype) && dtype != DType::q8_0) ||
           (dtype != DType::f32 && queries >= kManyQueries);
}

// Scores of queries begin <= i < end, by lane; unspecified in lanes without a key.
void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end);
// partial = partial * factor + sum of p v, for queries begin <= i < end.
void add_values(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end);

}  // namespace plait::cpu::PLAIT_ISA
