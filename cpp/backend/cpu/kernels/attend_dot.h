// Scores: products of queries and keys.
//
// A product is summed in the lanes of a register, each over every kLanes-th element, and the lanes
// in the tree of sum(): the same for every number of queries that share the reading.
#pragma once

#include "backend/cpu/kernels/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kJoined = F32::kLanes >= 4 ? 4 : 1;   // what join() takes
constexpr int kKeysAtOnce = F32::kLanes / kJoined;  // and sums_of_four()

// scores[query][lane] of `count` queries, for the keys of a register's lanes.
template <typename Load, int count>
PLAIT_INLINE void dot_products(const Query* query, const unsigned char* const* keys, int64_t dim,
                               float* scores) {
    F32 sums[count][kJoined];
    for (int part = 0; part < kJoined; ++part) {
        F32 acc[count][kKeysAtOnce];
        for (int i = 0; i < count; ++i)
            for (int j = 0; j < kKeysAtOnce; ++j) acc[i][j] = F32::zero();
        const unsigned char* key[kKeysAtOnce];
        for (int j = 0; j < kKeysAtOnce; ++j) key[j] = keys[kJoined * j + part];
        int64_t d = 0;
        for (; d + F32::kLanes <= dim; d += F32::kLanes) {
            F32 k[kKeysAtOnce];
            for (int j = 0; j < kKeysAtOnce; ++j) k[j] = Load::at(key[j], d);
            for (int i = 0; i < count; ++i) {
                const F32 q = F32::load(query[i].q + d);
                for (int j = 0; j < kKeysAtOnce; ++j) acc[i][j] = fma(q, k[j], acc[i][j]);
            }
        }
        if (d < dim) {
            for (int j = 0; j < kKeysAtOnce; ++j) {
                const F32 k = Load::at(key[j], d, dim - d);
                for (int i = 0; i < count; ++i)
                    acc[i][j] = fma(F32::load(query[i].q + d, dim - d), k, acc[i][j]);
            }
        }
        for (int i = 0; i < count; ++i) sums[i][part] = sums_of_four(acc[i]);
    }
    for (int i = 0; i < count; ++i) join(sums[i]).store(scores + i * kKeyBlock);
}

template <typename Load>
static inline void dot_products(const Tile& tile, const unsigned char* const (&keys)[kKeyBlock],
                                int64_t begin, int64_t end) {
    const int64_t dim = tile.args.key_dim;
    for (int64_t i = begin; i < end; i += 4) {
        for (int part = 0; part < kParts; ++part) {
            const unsigned char* const* of_part = keys + part * F32::kLanes;
            const Query* query = tile.query + i;
            float* scores = tile.scores + i * kKeyBlock + part * F32::kLanes;
            switch (end - i) {
            case 1: dot_products<Load, 1>(query, of_part, dim, scores); break;
            case 2: dot_products<Load, 2>(query, of_part, dim, scores); break;
            case 3: dot_products<Load, 3>(query, of_part, dim, scores); break;
            default: dot_products<Load, 4>(query, of_part, dim, scores); break;
            }
        }
    }
}

// Whether the block's keys are decoded, once for all queries, and stay in tile.rows.
PLAIT_INLINE bool decodes_keys(const Tile& tile, int64_t queries) {
    const uint8_t dtype = tile.args.key_cache.dtype;
    return dtype > kCacheQ8_0 || (dtype != kCacheF32 && queries >= kManyQueries);
}

// Scores of queries begin <= i < end, by lane; of no meaning in lanes without a key.
static inline void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const CacheLayout& cache = tile.args.key_cache;
    const bool decodes = decodes_keys(tile, end - begin);
    const unsigned char* key[kKeyBlock];
    for (int64_t i = 0; i < kKeyBlock; ++i) key[i] = nullptr;
    for (int32_t e = 0; e < block.count; ++e) {
        const unsigned char* stored = tile.keys + block.row[e] * cache.row_bytes;
        if (decodes) {
            float* row = tile.rows + e * cache.head_elements;
            decode_cache(cache.dtype, stored, row, cache.head_elements);
            stored = reinterpret_cast<const unsigned char*>(row);
        }
        key[block.lane[e]] = stored;
    }
    for (int64_t i = 0; i < kKeyBlock; ++i)
        if (!key[i]) key[i] = key[block.lane[0]];

    if (decodes || cache.dtype == kCacheF32)
        dot_products<LoadF32>(tile, key, begin, end);
    else if (cache.dtype == kCacheF16)
        dot_products<LoadF16>(tile, key, begin, end);
    else if (cache.dtype == kCacheBF16)
        dot_products<LoadBF16>(tile, key, begin, end);
    else
        dot_products<LoadQ8_0>(tile, key, begin, end);
}

}  // namespace plait::cpu::PLAIT_ISA
