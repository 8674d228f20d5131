// Products of attention on AMX: scores and weighted values of tiles of 16 queries by 32 keys, where
// the cache is F16 or BF16.
//
// An F16 number is the sum of two BF16 numbers, high and low, and an f32 number of three. For every 32
// elements, the products that matter in f32 are added, in the order of multiply_keys() and
// multiply_values(), each as amx/float_product.cpp defines. The result of a query does not depend on
// the other queries of a tile:
//   s[key] = sum over elements of q k, 32 at a time
//   partial = partial * factor + sum over the block's 32 lanes of p v
// Lanes without a key have a value of zero. Keys and values that are not finite are multiplied in
// registers: the two parts of an infinite number would give NaN, and tiles would add a value to
// queries that do not see it.
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/kernels/attention/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {

namespace {

constexpr int64_t kLanes = F32::kLanes, kHigh = 16;
constexpr int64_t kStep = kTileElements;      // elements of a key that a tile has
constexpr int64_t kWords = kHigh * kLanes;    // of a tile; two halves each, or a sum
constexpr int64_t kRowBytes = kLanes * 4;     // of a tile's row
constexpr int64_t kPairs = kKeyBlock / 2;     // of lanes
constexpr int kAtOnce = 2;                    // tiles of queries that share loaded keys
constexpr int kKeyTiles = kKeyBlock / kHigh;  // of a block

// Calls body.template operator()<Load, has a low part>() for the type of a cache.
template <class Body>
PLAIT_INLINE void with_load(DType dtype, Body body) {
    if (dtype == DType::f16) return body.template operator()<LoadF16, true>();
    body.template operator()<LoadBF16, false>();
}

// Elements [i, i + kLanes) of a row that has `n`; those past its end are zeros.
template <class Load>
PLAIT_INLINE F32 elements(const unsigned char* row, int64_t i, int64_t n) {
    if (i + kLanes <= n) return Load::at(row, i);
    if (i >= n) return F32::zero();
    return Load::at(row, i, n - i);
}

PLAIT_INLINE __mmask16 not_finite(F32 x) {
    constexpr int kInfiniteOrNan = 0x99;
    return _mm512_fpclass_ps_mask(x.v, kInfiniteOrNan);
}

// An f32 number as the sum of three whose upper halves matter.
constexpr int kFloatParts = 3;
PLAIT_INLINE void split_in_three(F32 x, F32 (&parts)[kFloatParts]) {
    const TwoHalves upper = split_in_two(x), lower = split_in_two(upper.low);
    parts[0] = upper.high;
    parts[1] = lower.high;
    parts[2] = lower.low;
}

// ---- Scores ----

// Unpacks the keys of the block into tiles [steps][parts][kKeyTiles][16 keys][32 elements]. Returns
// the bits of the lanes whose key is not finite.
template <class Load, bool kHasLow>
PLAIT_INLINE uint32_t put_keys(const Tile& tile, uint32_t* to) {
    constexpr int64_t kParts = kHasLow ? 2 : 1;
    const RowPrefetch prefetch = prefetch_keys(tile);
    const int64_t dim = tile.args.key_dim;
    uint32_t lanes = 0;
    for (int64_t lane = 0; lane < kKeyBlock; ++lane) {
        const unsigned char* key = tile.keys + tile.now->key[lane];
        prefetch.fetch(lane);
        uint32_t* row = to + lane * kLanes;
        __mmask16 found = 0;
        for (int64_t d = 0; d < dim; d += kStep, row += kParts * kKeyTiles * kWords) {
            const F32 x = elements<Load>(key, d, dim), y = elements<Load>(key, d + kLanes, dim);
            found |= not_finite(x) | not_finite(y);
            const TwoHalves a = split_in_two(x), b = split_in_two(y);
            _mm512_store_si512(row, in_a_row(a.high, b.high));
            if constexpr (kHasLow)
                _mm512_store_si512(row + kKeyTiles * kWords, in_a_row(a.low, b.low));
        }
        if (found != 0) lanes |= 1u << lane;
    }
    return lanes;
}

// Computes the scores of queries begin <= i < end for the keys of `lanes`, in registers.
template <class Load>
void score_in_registers(const Tile& tile, uint32_t lanes, int64_t begin, int64_t end) {
    const int64_t dim = tile.args.key_dim;
    for (; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const unsigned char* key = tile.keys + tile.now->key[lane];
        for (int64_t i = begin; i < end; ++i) {
            const auto* query = reinterpret_cast<const unsigned char*>(tile.query[i].q);
            F32 x = F32::zero();
            for (int64_t d = 0; d < dim; d += kLanes)
                x = fma(elements<LoadF32>(query, d, dim), elements<Load>(key, d, dim), x);
            tile.scores[i * kKeyBlock + lane] = sum(x);
        }
    }
}

// Registers 0 to 3 hold sums, of two tiles of keys by kTall tiles of queries. 4 and 5 hold keys, 6 and
// 7 queries.
template <int kTall>
PLAIT_INLINE void add_keys() {
    add_bf16_product<0, 4, 6>();
    add_bf16_product<1, 5, 6>();
    if constexpr (kTall == 2) {
        add_bf16_product<2, 4, 7>();
        add_bf16_product<3, 5, 7>();
    }
}
PLAIT_INLINE void load_keys(const uint32_t* tiles) {
    load_tile<4>(tiles, kRowBytes);
    load_tile<5>(tiles + kWords, kRowBytes);
}
template <int kTall>
PLAIT_INLINE void load_queries(const uint32_t* queries, int64_t words) {
    load_tile<6>(queries, words * 4);
    if constexpr (kTall == 2) load_tile<7>(queries + kHigh, words * 4);
}

// Multiplies kTall tiles of queries by the keys, to sums [kTall][kKeyTiles][16 keys][16 queries].
template <bool kHasLow, int kTall>
PLAIT_INLINE void multiply_keys(const Tile& tile, const uint32_t* keys, int64_t first,
                                float* sums) {
    constexpr int64_t kParts = kHasLow ? 2 : 1;
    const int64_t words = query_words(tile.args), part = kHigh * words;
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
    const uint32_t* queries = tile.query_parts + first;
    for (int64_t d = 0; d < tile.args.key_dim; d += kStep) {
        load_keys(keys);
        load_queries<kTall>(queries, words);
        add_keys<kTall>();
        load_queries<kTall>(queries + 2 * part, words);
        add_keys<kTall>();
        load_queries<kTall>(queries + part, words);
        add_keys<kTall>();
        if constexpr (kHasLow) {
            load_keys(keys + kKeyTiles * kWords);
            add_keys<kTall>();
            load_queries<kTall>(queries, words);
            add_keys<kTall>();
        }
        keys += kParts * kKeyTiles * kWords;
        queries += kFloatParts * part;
    }
    store_tile<0>(sums, kRowBytes);
    store_tile<1>(sums + kWords, kRowBytes);
    if constexpr (kTall == 2) {
        store_tile<2>(sums + 2 * kWords, kRowBytes);
        store_tile<3>(sums + 3 * kWords, kRowBytes);
    }
}

// ---- Values ----

// Unpacks the values of lanes 2 i and 2 i + 1 into row i of tiles [width / 16][parts][16][32]. A null
// row is zeros. Returns true if all of them are finite.
template <class Load, bool kHasLow>
PLAIT_INLINE bool put_pair(const Tile& tile, const unsigned char* even, const unsigned char* odd,
                           uint32_t* to) {
    constexpr int64_t kParts = kHasLow ? 2 : 1;
    const int64_t dim = tile.args.value_dim;
    __mmask16 found = 0;
    for (int64_t c = 0; c < tile.width; c += kLanes, to += kParts * kWords) {
        const F32 x = even ? elements<Load>(even, c, dim) : F32::zero();
        const F32 y = odd ? elements<Load>(odd, c, dim) : F32::zero();
        found |= not_finite(x) | not_finite(y);
        const TwoHalves a = split_in_two(x), b = split_in_two(y);
        _mm512_store_si512(to, side_by_side(a.high, b.high));
        if constexpr (kHasLow) _mm512_store_si512(to + kWords, side_by_side(a.low, b.low));
    }
    return found == 0;
}

// The values of a block by lane: null where there is no key.
struct LaneValues {
    const unsigned char* row[kKeyBlock] = {};
    uint32_t not_finite = 0;  // bits of lanes
};

template <class Load, bool kHasLow>
PLAIT_INLINE void put_values(const Tile& tile, const KeyBlock& block, LaneValues& values,
                             uint32_t* to) {
    const RowPrefetch prefetch = prefetch_values(tile);
    for (int32_t e = 0; e < block.count; ++e)
        values.row[block.lane[e]] = tile.values + tile.now->value[e];
    for (int64_t i = 0; i < kPairs; ++i, to += kLanes) {
        prefetch.fetch(2 * i);
        prefetch.fetch(2 * i + 1);
        const unsigned char* rows[2] = {values.row[2 * i], values.row[2 * i + 1]};
        if (put_pair<Load, kHasLow>(tile, rows[0], rows[1], to)) continue;
        for (int j = 0; j < 2; ++j) {
            if (put_pair<Load, kHasLow>(tile, rows[j], nullptr, to)) continue;
            values.not_finite |= 1u << (2 * i + j);
            rows[j] = nullptr;
        }
        put_pair<Load, kHasLow>(tile, rows[0], rows[1], to);
    }
}

// Splits the weights of queries [first, end), at most 16, into tiles [parts][16 queries][32 lanes].
// Missing rows keep what they had: nothing reads their results.
PLAIT_INLINE void split_weights(const Tile& tile, int64_t first, int64_t end, uint32_t* to) {
    for (int64_t r = 0; r < kHigh && first + r < end; ++r, to += kLanes) {
        const float* p = tile.scores + (first + r) * kKeyBlock;
        F32 a[kFloatParts], b[kFloatParts];
        split_in_three(F32::load(p), a);
        split_in_three(F32::load(p + kLanes), b);
        for (int part = 0; part < kFloatParts; ++part)
            _mm512_store_si512(to + part * kWords, in_a_row(a[part], b[part]));
    }
}

// Multiplies the weights by two tiles of values, `next` words apart, or by one, and stores the sums.
// Registers 4 and 5 hold weights, 6 and 7 values.
template <bool kHasLow, int kWide>
PLAIT_INLINE void multiply_values(const uint32_t* weights, const uint32_t* values, float* y,
                                  int64_t y_bytes) {
    constexpr int64_t kNext = (kHasLow ? 2 : 1) * kWords;
    const auto load_values = [&](int64_t part) {
        load_tile<6>(values + part * kWords, kRowBytes);
        if constexpr (kWide == 2) load_tile<7>(values + kNext + part * kWords, kRowBytes);
    };
    const auto add = [&]<int kWeights>() {
        add_bf16_product<0, kWeights, 6>();
        if constexpr (kWide == 2) add_bf16_product<1, kWeights, 7>();
    };
    clear_tile<0>();
    clear_tile<1>();
    load_values(0);
    load_tile<4>(weights, kRowBytes);
    add.template operator()<4>();
    load_tile<5>(weights + 2 * kWords, kRowBytes);
    add.template operator()<5>();
    load_tile<5>(weights + kWords, kRowBytes);
    add.template operator()<5>();
    if constexpr (kHasLow) {
        load_values(1);
        add.template operator()<5>();
        add.template operator()<4>();
    }
    store_tile<0>(y, y_bytes);
    if constexpr (kWide == 2) store_tile<1>(y + kLanes, y_bytes);
}

// Multiplies the weights of 16 queries by the values of the block, to tile.products.
template <bool kHasLow>
PLAIT_INLINE void multiply_block(const Tile& tile, const uint32_t* weights,
                                 const uint32_t* values) {
    constexpr int64_t kNext = (kHasLow ? 2 : 1) * kWords;
    int64_t c = 0;
    for (; c + 2 * kLanes <= tile.width; c += 2 * kLanes, values += 2 * kNext)
        multiply_values<kHasLow, 2>(weights, values, tile.products + c, tile.width * 4);
    if (c < tile.width)
        multiply_values<kHasLow, 1>(weights, values, tile.products + c, tile.width * 4);
}

// Adds a query's row of tile.products and the values that are not finite to its partial sum.
template <class Load>
PLAIT_INLINE void add_products(const Tile& tile, const LaneValues& values, int64_t i,
                               const float* products) {
    const Query& query = tile.query[i];
    float* partial = tile.partial + i * tile.width;
    const F32 factor = F32::set(query.factor);
    for (int64_t c = 0; c < tile.width; c += kLanes)
        fma(F32::load(partial + c), factor, F32::load(products + c)).store(partial + c);
    for (uint32_t left = values.not_finite & query.visible; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const F32 p = F32::set(tile.scores[i * kKeyBlock + lane]);
        for (int64_t c = 0; c < tile.width; c += kLanes) {
            const F32 v = elements<Load>(values.row[lane], c, tile.args.value_dim);
            fma(p, v, F32::load(partial + c)).store(partial + c);
        }
    }
}

}  // namespace

void run_in_tiles(int64_t begin, int64_t end, void (*body)(void* context, int64_t task),
                  void* context) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
        shapes.rows[tile] = kHigh;
        shapes.row_bytes[tile] = kRowBytes;
    }
    const OpenTiles tiles(shapes);
    for (int64_t task = begin; task < end; ++task) body(context, task);
}

// tile.query_parts is [steps][parts][16 pairs of elements][query_words]: two halves of each query.
void split_queries(const Tile& tile, int64_t n) {
    const int64_t words = query_words(tile.args), dim = tile.args.key_dim;
    const auto load = [&](int64_t i, int64_t d) {
        if (i >= n) return F32::zero();
        return elements<LoadF32>(reinterpret_cast<const unsigned char*>(tile.query[i].q), d, dim);
    };
    for (int64_t first = 0; first < n; first += kHigh) {
        for (int64_t d = 0; d < whole_tiles(dim); d += kLanes) {
            F32 x[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) x[i] = load(first + i, d);
            transpose(x);
            const int64_t row = d / kStep * kFloatParts * kHigh + d % kStep / 2;
            uint32_t* to = tile.query_parts + row * words + first;
            for (int64_t i = 0; i < kLanes; i += 2, to += words) {
                F32 a[kFloatParts], b[kFloatParts];
                split_in_three(x[i], a);
                split_in_three(x[i + 1], b);
                for (int part = 0; part < kFloatParts; ++part)
                    _mm512_storeu_si512(to + part * kHigh * words, side_by_side(a[part], b[part]));
            }
        }
    }
}

void score_in_tiles(const Tile& tile, const KeyBlock&, int64_t begin, int64_t end) {
    auto* keys = reinterpret_cast<uint32_t*>(tile.squares);
    with_load(tile.args.key_cache.dtype, [&]<class Load, bool kHasLow>() {
        const uint32_t not_finite = put_keys<Load, kHasLow>(tile, keys);
        alignas(64) float sums[kAtOnce * kKeyTiles * kWords];
        for (int64_t first = begin; first < end; first += kAtOnce * kHigh) {
            const bool tall = end - first > kHigh;
            if (tall)
                multiply_keys<kHasLow, kAtOnce>(tile, keys, first, sums);
            else
                multiply_keys<kHasLow, 1>(tile, keys, first, sums);
            for (int64_t t = 0; t < (tall ? kAtOnce : 1) * kKeyTiles; ++t) {
                const int64_t i = first + t / kKeyTiles * kHigh;
                F32 x[kHigh];
                for (int64_t r = 0; r < kHigh; ++r)
                    x[r] = F32::load(sums + t * kWords + r * kLanes);
                transpose(x);
                float* scores = tile.scores + i * kKeyBlock + t % kKeyTiles * kLanes;
                for (int64_t r = 0; r < kHigh && i + r < end; ++r)
                    x[r].store(scores + r * kKeyBlock);
            }
        }
        if (not_finite != 0) score_in_registers<Load>(tile, not_finite, begin, end);
    });
}

void add_values_in_tiles(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    auto* tiles = reinterpret_cast<uint32_t*>(tile.rows);
    with_load(tile.args.value_cache.dtype, [&]<class Load, bool kHasLow>() {
        LaneValues values;
        put_values<Load, kHasLow>(tile, block, values, tiles);
        // The next weights are split before these are multiplied, so that tiles wait for no store.
        alignas(64) uint32_t weights[2][kFloatParts * kWords];
        int now = 0;
        split_weights(tile, begin, end, weights[now]);
        for (int64_t first = begin; first < end; first += kHigh, now = 1 - now) {
            split_weights(tile, first + kHigh, end, weights[1 - now]);
            multiply_block<kHasLow>(tile, weights[now], tiles);
            for (int64_t r = 0; r < kHigh && first + r < end; ++r)
                if (tile.query[first + r].visible != 0)
                    add_products<Load>(tile, values, first + r, tile.products + r * tile.width);
        }
    });
}

}  // namespace plait::cpu::PLAIT_ISA
