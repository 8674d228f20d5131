// A tile of attention: the heads that share a kv head, for a few tokens of one sequence.
#pragma once

#include "backend/cpu/kernels/cache.h"
#include "backend/cpu/kernels/key_blocks.h"

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

    PLAIT_INLINE_MEMBER int64_t queries() const { return tokens * heads; }
    // The same of another kv head of the task, so many after this one.
    PLAIT_INLINE_MEMBER Tile at(int64_t kv_head) const {
        Tile t = *this;
        t.keys += kv_head * args.key_cache.head_bytes;
        t.values += kv_head * args.value_cache.head_bytes;
        t.partial += kv_head * queries() * width;
        t.lanes += kv_head * queries() * 16;
        t.total += kv_head * queries() * width;
        t.query += kv_head * queries();
        return t;
    }
};

// Queries from which on it pays to decode a block once and for all.
constexpr int64_t kManyQueries = 12;

}  // namespace plait::cpu::PLAIT_ISA
