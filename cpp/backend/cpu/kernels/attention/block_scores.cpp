// Scores: products of queries and keys.
//
// A product is summed in the lanes of a register, each over every kLanes-th element, and the lanes
// are then added in the tree of sum(). With many queries the keys are transposed first, so that a
// register has one element of kLanes keys. What were lanes are then registers, which are added in
// the same tree without shuffles, so the bits do not depend on the number of queries.
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

// True if the tree of sum() adds lanes i and i + kLanes / 2 first, then halves again, as
// sum_elements() does.
constexpr bool kCanTranspose = F32::kLanes >= 8;
PLAIT_INLINE bool transposes(int64_t queries) { return kCanTranspose && queries >= kManyQueries; }

constexpr int kGroups = static_cast<int>(kKeyBlock) / F32::kLanes;  // registers of a block's keys
constexpr int kGroupsAtOnce = kGroups < 2 ? 1 : 2;

// The keys of a block in squares of kLanes elements by kLanes keys: the squares of a group of
// kLanes keys follow each other, and register e of a square has its element e of every key.
struct Squares {
    const float* first;
    int64_t per_group;
    int64_t dim;  // elements of a key; a square may have more
};

// Transposes the groups of the block that have a key. Where a lane has no key, offset[lane] is that
// of another.
template <typename Load>
PLAIT_INLINE void transpose_keys(const Keys& keys, uint32_t lanes, const Squares& to,
                                 float* squares) {
    for (int64_t g = 0; g < kGroups && lanes >> (g * F32::kLanes) != 0; ++g) {
        const unsigned char* key[F32::kLanes];
        for (int64_t i = 0; i < F32::kLanes; ++i) {
            key[i] = keys.first + keys.offset[g * F32::kLanes + i];
            keys.prefetch.fetch(g * F32::kLanes + i);
        }
        for (int64_t b = 0; b < to.per_group; ++b) {
            const int64_t d = b * F32::kLanes, left = to.dim - d;
            F32 r[F32::kLanes];
            for (int i = 0; i < F32::kLanes; ++i)
                r[i] = left < F32::kLanes ? Load::at(key[i], d, left) : Load::at(key[i], d);
            transpose(r);
            float* square = squares + (g * to.per_group + b) * F32::kLanes * F32::kLanes;
            for (int e = 0; e < F32::kLanes; ++e) r[e].store(square + e * F32::kLanes);
        }
    }
}

// Computes the part of scores to which elements first, first + step, ... contribute. With step =
// kLanes this is what one lane sums in dot_products(); smaller steps add two parts each.
template <int count, int step>
PLAIT_INLINE void sum_elements(const Query* query, const Squares& keys, int first,
                               F32 (&y)[count][kGroupsAtOnce]) {
    if constexpr (step == F32::kLanes) {
        for (int i = 0; i < count; ++i)
            for (int g = 0; g < kGroupsAtOnce; ++g) y[i][g] = F32::zero();
        const float* key = keys.first + first * F32::kLanes;
        for (int64_t d = first; d < keys.dim; d += F32::kLanes, key += F32::kLanes * F32::kLanes) {
            F32 k[kGroupsAtOnce];
            for (int g = 0; g < kGroupsAtOnce; ++g)
                k[g] = F32::load(key + g * keys.per_group * F32::kLanes * F32::kLanes);
            for (int i = 0; i < count; ++i) {
                const F32 q = F32::set(query[i].q[d]);
                for (int g = 0; g < kGroupsAtOnce; ++g) y[i][g] = fma(q, k[g], y[i][g]);
            }
        }
    } else {
        F32 others[count][kGroupsAtOnce];
        sum_elements<count, 2 * step>(query, keys, first, y);
        sum_elements<count, 2 * step>(query, keys, first + step, others);
        for (int i = 0; i < count; ++i)
            for (int g = 0; g < kGroupsAtOnce; ++g) y[i][g] = y[i][g] + others[i][g];
    }
}

template <int count>
PLAIT_INLINE void transposed_products(const Tile& tile, Squares keys, uint32_t lanes, int64_t i) {
    for (int64_t g = 0; g < kGroups && lanes >> (g * F32::kLanes) != 0; g += kGroupsAtOnce) {
        F32 y[count][kGroupsAtOnce];
        sum_elements<count, 1>(tile.query + i, keys, 0, y);
        for (int q = 0; q < count; ++q)
            for (int r = 0; r < kGroupsAtOnce; ++r)
                y[q][r].store(tile.scores + (i + q) * kKeyBlock + (g + r) * F32::kLanes);
        keys.first += kGroupsAtOnce * keys.per_group * F32::kLanes * F32::kLanes;
    }
}

template <typename Load>
static inline void products(const Tile& tile, Keys& keys, uint32_t lanes, int64_t begin,
                            int64_t end) {
    if (!transposes(end - begin)) return dot_products<Load>(tile, keys, lanes, begin, end);
    const int64_t dim = tile.args.key_dim;
    const Squares squares{tile.squares, (dim + F32::kLanes - 1) / F32::kLanes, dim};
    transpose_keys<Load>(keys, lanes, squares, tile.squares);
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) transposed_products<4>(tile, squares, lanes, i);
    for (; i + 2 <= end; i += 2) transposed_products<2>(tile, squares, lanes, i);
    if (i < end) transposed_products<1>(tile, squares, lanes, i);
}

}  // namespace

// Computes the scores of queries begin <= i < end, by lane. Lanes without a key are unspecified.
void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const CacheLayout& cache = tile.args.key_cache;
    Keys keys{tile.keys, tile.now->key, prefetch_keys(tile)};
    // Transposing reads each key once, so it can decode it as well.
    const bool in_place = transposes(end - begin) && !tile.args.values_in_keys &&
                          (is_float(cache.dtype) || cache.dtype == DType::q8_0);
    if (decodes_keys(tile, end - begin) && !in_place) {
        int64_t offset[kKeyBlock] = {};  // missing lanes have the first row
        for (int32_t e = 0; e < block.count; ++e) {
            const int64_t lane = block.lane[e];
            float* row = tile.rows + e * cache.head_elements;
            keys.prefetch.fetch(lane);
            decode_cache(cache.dtype, tile.keys + tile.now->key[lane], row, cache.head_elements);
            offset[lane] = e * cache.head_elements * static_cast<int64_t>(sizeof(float));
        }
        keys = {reinterpret_cast<const unsigned char*>(tile.rows), offset, {nullptr, nullptr, 0}};
        products<LoadF32>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::f16) {
        products<LoadF16>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::bf16) {
        products<LoadBF16>(tile, keys, block.lanes, begin, end);
    } else if (cache.dtype == DType::q8_0) {
        products<LoadQ8_0>(tile, keys, block.lanes, begin, end);
    } else {
        products<LoadF32>(tile, keys, block.lanes, begin, end);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
