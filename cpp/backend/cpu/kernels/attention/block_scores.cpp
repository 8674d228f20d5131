// Scores: products of queries and keys.
//
// A product is summed in the lanes of a register, each over every kLanes-th element, and the lanes
// are then added in the tree of sum(). The order does not depend on the number of queries that
// share the loaded keys.
#include "backend/cpu/kernels/attention/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

constexpr int kJoined = F32::kLanes >= 4 ? 4 : 1;   // registers that join() reduces
constexpr int kKeysAtOnce = F32::kLanes / kJoined;  // registers that sums_of_four() reduces

// Keys at first + offset[lane], and the keys to prefetch meanwhile.
struct Keys {
    const unsigned char* first;
    const int64_t* offset;
    RowPrefetch prefetch;
};

// Computes scores[query][lane] of `count` queries, for the keys of one register's lanes from `lane`
// on.
template <typename Load, int count>
PLAIT_INLINE void dot_products(const Query* query, const Keys& keys, int64_t lane, int64_t dim,
                               float* scores) {
    const int64_t whole = dim / F32::kLanes * F32::kLanes;
    F32 sums[count][kJoined];
    for (int part = 0; part < kJoined; ++part) {
        const unsigned char* key[kKeysAtOnce];
        for (int j = 0; j < kKeysAtOnce; ++j) {
            key[j] = keys.first + keys.offset[lane + kJoined * j + part];
            keys.prefetch.fetch(lane + kJoined * j + part);
        }
        F32 acc[count][kKeysAtOnce];
        for (int i = 0; i < count; ++i)
            for (int j = 0; j < kKeysAtOnce; ++j) acc[i][j] = F32::zero();
        for (int64_t d = 0; d < whole; d += F32::kLanes) {
            F32 k[kKeysAtOnce];
            for (int j = 0; j < kKeysAtOnce; ++j) k[j] = Load::at(key[j], d);
            for (int i = 0; i < count; ++i) {
                const F32 q = F32::load(query[i].q + d);
                for (int j = 0; j < kKeysAtOnce; ++j) acc[i][j] = fma(q, k[j], acc[i][j]);
            }
        }
        if (whole < dim) {
            for (int j = 0; j < kKeysAtOnce; ++j) {
                const F32 k = Load::at(key[j], whole, dim - whole);
                for (int i = 0; i < count; ++i)
                    acc[i][j] = fma(F32::load(query[i].q + whole, dim - whole), k, acc[i][j]);
            }
        }
        for (int i = 0; i < count; ++i) sums[i][part] = sums_of_four(acc[i]);
    }
    for (int i = 0; i < count; ++i) join(sums[i]).store(scores + i * kKeyBlock);
}

template <typename Load>
static inline void dot_products(const Tile& tile, Keys& keys, uint32_t lanes, int64_t begin,
                                int64_t end) {
    const int64_t dim = tile.args.key_dim;
    for (int64_t i = begin; i < end; i += 4) {
        for (int64_t lane = 0; lane < kKeyBlock && lanes >> lane != 0; lane += F32::kLanes) {
            const Query* query = tile.query + i;
            float* scores = tile.scores + i * kKeyBlock + lane;
            switch (end - i) {
            case 1: dot_products<Load, 1>(query, keys, lane, dim, scores); break;
            case 2: dot_products<Load, 2>(query, keys, lane, dim, scores); break;
            case 3: dot_products<Load, 3>(query, keys, lane, dim, scores); break;
            default: dot_products<Load, 4>(query, keys, lane, dim, scores); break;
            }
        }
        keys.prefetch.bytes = 0;  // the first queries have prefetched everything
    }
}

}  // namespace

// Computes the scores of queries begin <= i < end, by lane. Lanes without a key are unspecified.
void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const CacheLayout& cache = tile.args.key_cache;
    Keys keys{tile.keys, tile.now->key, {tile.keys, nullptr, 0}};
    if (tile.next) keys.prefetch = {tile.keys, tile.next->key, cache.head_bytes};
    if (decodes_keys(tile, end - begin)) {
        int64_t offset[kKeyBlock] = {};
        for (int32_t e = 0; e < block.count; ++e) {
            const int64_t lane = block.lane[e];
            float* row = tile.rows + e * cache.head_elements;
            keys.prefetch.fetch(lane);
            decode_cache(cache.dtype, tile.keys + tile.now->key[lane], row, cache.head_elements);
            offset[lane] = e * cache.head_elements * static_cast<int64_t>(sizeof(float));
        }
        keys = {reinterpret_cast<const unsigned char*>(tile.rows), offset, {nullptr, nullptr, 0}};
        dot_products<LoadF32>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::f16) {
        dot_products<LoadF16>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::bf16) {
        dot_products<LoadBF16>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::q8_0) {
        dot_products<LoadQ8_0>(tile, keys, block.lanes, begin, end);
    } else {
        dot_products<LoadF32>(tile, keys, block.lanes, begin, end);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
