// Attention of a tile: all heads that share a kv head, for a few tokens of one sequence.
//
// Per query, over blocks of keys in order, with m the running maximum (Milakov & Gimelshein 2018,
// arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135):
//     s_j = cap(scale * q . k_j) + bias_j      m' = max(m, s_j)      p_j = exp(s_j - m')
//     sum = sum exp(m - m') + sum of p_j      acc = acc exp(m - m') + sum of p_j v_j
// Every q . k is summed over the head from its first element to its last, the p of a block in a
// tree over its lanes, p v from the first key to the last. So a query's bits depend on nothing but
// the query, the keys it sees and their ordinals.
#pragma once

#include "backend/cpu/kernels/cache.h"
#include "backend/cpu/kernels/key_blocks.h"
#include "backend/cpu/kernels/position_bias.h"

namespace plait::cpu::PLAIT_ISA {

constexpr int kParts = static_cast<int>(kKeyBlock) / F32::kLanes;  // registers of a block's scores
constexpr float kMinusInfinity = -__builtin_inff();

// Sums over some keys; `any` tells whether there was one.
struct SoftmaxSum {
    float most;
    float sum;
    bool any;
};

struct QueryState {
    const float* q;
    SoftmaxSum partial, total;
    int32_t first, last;
    uint32_t visible;  // lanes of the current block
    float factor;      // by which the current block scales what came before
    int32_t position;
    float slope;          // of alibi
    const float* biases;  // of buckets, by key position - position
};
static_assert(sizeof(QueryState) <= 16 * sizeof(float));

struct Tile {
    const AttendArgs& args;
    const unsigned char* keys;  // of the kv head, in row 0
    const unsigned char* values;
    int64_t queries;
    int64_t value_width;
    const int32_t* key_positions;  // of the sequence
    float* rows;
    float* positions;  // of the block's keys, by lane
    float* scores;
    float* partial;
    float* total;
    QueryState* state;
};

PLAIT_INLINE float exp_of(float x) {
    float y[F32::kLanes];
    exp(F32::set(x)).store(y);
    return y[0];
}

// What is subtracted before exp(): a maximum of -inf would make NaN of scores that are -inf.
PLAIT_INLINE float finite_or_zero(float most) { return most == kMinusInfinity ? 0.0f : most; }

// ---- Scores ----

// Keeps the compiler from carrying q + d + j in a register for every j.
PLAIT_INLINE const float* one_address(const float* p) {
    __asm__("" : "+r"(p));
    return p;
}

// scores[query][lane] = q . k for queries begin <= i < end. A square of elements by keys is turned
// in registers, so that a lane sums one key, element by element.
template <typename Load>
PLAIT_INLINE void dot_products(const Tile& tile, const unsigned char* const (&key)[kKeyBlock],
                               int64_t begin, int64_t end) {
    const int64_t dim = tile.args.key_dim;
    for (int part = 0; part < kParts; ++part) {
        const unsigned char* const* keys = key + part * F32::kLanes;
        float* scores = tile.scores + part * F32::kLanes;
        for (int64_t i = begin; i < end; ++i) F32::zero().store(scores + i * kKeyBlock);
        int64_t d = 0;
        F32 r[F32::kLanes];
        for (; d + F32::kLanes <= dim; d += F32::kLanes) {
            for (int j = 0; j < F32::kLanes; ++j) r[j] = Load::at(keys[j], d);
            transpose(r);
            for (int64_t i = begin; i < end; ++i) {
                const float* q = one_address(tile.state[i].q + d);
                F32 dot = F32::load(scores + i * kKeyBlock);
                for (int j = 0; j < F32::kLanes; ++j) dot = fma(F32::set(q[j]), r[j], dot);
                dot.store(scores + i * kKeyBlock);
            }
        }
        if (d == dim) continue;
        for (int j = 0; j < F32::kLanes; ++j) r[j] = Load::at(keys[j], d, dim - d);
        transpose(r);
        for (int64_t i = begin; i < end; ++i) {
            F32 dot = F32::load(scores + i * kKeyBlock);
            for (int64_t j = 0; j < dim - d; ++j)
                dot = fma(F32::set(tile.state[i].q[d + j]), r[j], dot);
            dot.store(scores + i * kKeyBlock);
        }
    }
}

PLAIT_INLINE void list_positions(const Tile& tile, const KeyBlock& block) {
    if (tile.args.bias_kind != kAlibi) return;
    for (int64_t i = 0; i < kKeyBlock; ++i) tile.positions[i] = 0.0f;
    for (int32_t e = 0; e < block.count; ++e)
        tile.positions[block.lane[e]] = static_cast<float>(tile.key_positions[block.key[e]]);
}

static inline void score(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    list_positions(tile, block);
    const CacheLayout& cache = tile.args.key_cache;
    const unsigned char* key[kKeyBlock];  // by lane; lanes without a key get another's
    for (int64_t i = 0; i < kKeyBlock; ++i) key[i] = nullptr;
    for (int32_t e = 0; e < block.count; ++e) {
        const unsigned char* stored = tile.keys + block.row[e] * cache.row_bytes;
        if (cache.dtype > kCacheQ8_0) {
            float* decoded = tile.rows + e * cache.head_elements;
            decode_cache(cache.dtype, stored, decoded, cache.head_elements);
            stored = reinterpret_cast<const unsigned char*>(decoded);
        }
        key[block.lane[e]] = stored;
    }
    for (int64_t i = 0; i < kKeyBlock; ++i)
        if (!key[i]) key[i] = key[block.lane[0]];

    if (cache.dtype == kCacheF16)
        dot_products<LoadF16>(tile, key, begin, end);
    else if (cache.dtype == kCacheBF16)
        dot_products<LoadBF16>(tile, key, begin, end);
    else if (cache.dtype == kCacheQ8_0)
        dot_products<LoadQ8_0>(tile, key, begin, end);
    else
        dot_products<LoadF32>(tile, key, begin, end);
}

static inline void add_alibi(const Tile& tile, const QueryState& state, F32 (&x)[kParts]) {
    const F32 position = F32::set(static_cast<float>(state.position));
    for (int part = 0; part < kParts; ++part) {
        const F32 distance = abs(F32::load(tile.positions + part * F32::kLanes) - position);
        x[part] = fma(F32::set(-state.slope), distance, x[part]);
    }
}

static inline void add_buckets(const Tile& tile, const KeyBlock& block, const QueryState& state,
                               F32 (&x)[kParts]) {
    const int32_t most = tile.args.max_distance;
    float bias[kKeyBlock] = {};
    for (int32_t e = 0; e < block.count; ++e) {
        const int32_t distance = tile.key_positions[block.key[e]] - state.position;
        bias[block.lane[e]] = state.biases[distance < -most  ? -most
                                           : distance > most ? most
                                                             : distance];
    }
    for (int part = 0; part < kParts; ++part)
        x[part] = x[part] + F32::load(bias + part * F32::kLanes);
}

// Scale, cap, bias, and -inf where there is nothing to see.
PLAIT_INLINE void finish_scores(const Tile& tile, const KeyBlock& block, int64_t query,
                                F32 (&x)[kParts]) {
    const QueryState& state = tile.state[query];
    const F32 scale = F32::set(tile.args.scale);
    const F32 cap = F32::set(tile.args.softcap);
    for (int part = 0; part < kParts; ++part) {
        x[part] = scale * F32::load(tile.scores + query * kKeyBlock + part * F32::kLanes);
        if (tile.args.softcap != 0.0f) x[part] = cap * tanh(x[part] / cap);
    }
    if (tile.args.bias_kind == kAlibi) add_alibi(tile, state, x);
    if (tile.args.bias_kind == kBuckets) add_buckets(tile, block, state, x);
    for (int part = 0; part < kParts; ++part)
        x[part] =
            select_bits(state.visible >> (part * F32::kLanes), x[part], F32::set(kMinusInfinity));
}

PLAIT_INLINE float larger(float a, float b) { return b > a ? b : a; }

PLAIT_INLINE float most_of(const F32 (&x)[kParts]) {
    F32 most = x[0];
    for (int part = 1; part < kParts; ++part) most = max(most, x[part]);
    return reduce_max(most);
}

// Scores to p, by entry of the block, in place; updates the partial sum and the factor of what it
// held.
static inline void softmax_step(const Tile& tile, const KeyBlock& block, int64_t query) {
    QueryState& state = tile.state[query];
    F32 x[kParts];
    finish_scores(tile, block, query, x);
    SoftmaxSum& sums = state.partial;
    const float most = larger(sums.most, most_of(x));
    const float shift = finite_or_zero(most);
    float* p = tile.scores + query * kKeyBlock;
    state.factor = most == sums.most ? 1.0f : exp_of(sums.most - shift);
    for (int part = 0; part < kParts; ++part) {
        x[part] = select_bits(state.visible >> (part * F32::kLanes), exp(x[part] - F32::set(shift)),
                              F32::zero());
        x[part].store(p + part * F32::kLanes);
    }
    if (block.lane[block.count - 1] != block.count - 1)
        for (int32_t e = 0; e < block.count; ++e) p[e] = p[block.lane[e]];  // e <= lane[e]
    for (int width = kParts / 2; width > 0; width /= 2)
        for (int part = 0; part < width; ++part) x[part] = x[part] + x[part + width];
    sums.sum = sums.sum * state.factor + sum(x[0]);
    sums.most = most;
    sums.any = true;
}

// ---- Values ----

// Rows of values by entry, and the p of each query that belong to them.
struct Values {
    const unsigned char* row[kKeyBlock];
    int32_t begin, end;  // entries
};

// acc[query] = acc[query] * factor + sum of p v, for columns of `width` registers.
template <typename Load, int count, int width>
PLAIT_INLINE void add_columns(const Tile& tile, int64_t query, int64_t column,
                              const Values& values) {
    F32 acc[count][width];
    const float* p = tile.scores + query * kKeyBlock;
    float* partial = tile.partial + query * tile.value_width + column;
    for (int i = 0; i < count; ++i) {
        const F32 factor = F32::set(tile.state[query + i].factor);
        for (int c = 0; c < width; ++c)
            acc[i][c] = F32::load(partial + i * tile.value_width + c * F32::kLanes) * factor;
    }
    for (int32_t e = values.begin; e < values.end; ++e) {
        F32 v[width];
        for (int c = 0; c < width; ++c) v[c] = Load::at(values.row[e], column + c * F32::kLanes);
        for (int i = 0; i < count; ++i) {
            const F32 weight = F32::set(p[i * kKeyBlock + e]);
            for (int c = 0; c < width; ++c) acc[i][c] = fma(weight, v[c], acc[i][c]);
        }
    }
    for (int i = 0; i < count; ++i)
        for (int c = 0; c < width; ++c)
            acc[i][c].store(partial + i * tile.value_width + c * F32::kLanes);
}

template <typename Load, int count>
static inline void add_values(const Tile& tile, int64_t query, const Values& values) {
    constexpr int kWidth = kRegisters / 8;
    int64_t column = 0;
    for (; column + kWidth * F32::kLanes <= tile.value_width; column += kWidth * F32::kLanes)
        add_columns<Load, count, kWidth>(tile, query, column, values);
    for (; column < tile.value_width; column += F32::kLanes)
        add_columns<Load, count, 1>(tile, query, column, values);
}

// Queries that see the same keys go together, up to four.
template <typename Load>
static inline void add_values(const Tile& tile, const KeyBlock& block, Values& values,
                              int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
        const uint32_t visible = tile.state[i].visible;
        int64_t count = 1;
        while (count < 4 && i + count < end && tile.state[i + count].visible == visible) ++count;
        values.begin = 0;
        while (values.begin < block.count && (visible >> block.lane[values.begin] & 1) == 0)
            ++values.begin;
        values.end = values.begin;
        while (values.end < block.count && (visible >> block.lane[values.end] & 1) != 0)
            ++values.end;
        if (values.begin < values.end) {
            switch (count) {
            case 1: add_values<Load, 1>(tile, i, values); break;
            case 2: add_values<Load, 2>(tile, i, values); break;
            case 3: add_values<Load, 3>(tile, i, values); break;
            default: add_values<Load, 4>(tile, i, values); break;
            }
        }
        i += count;
    }
}

// Queries from which on it pays to convert values once and for all.
constexpr int64_t kManyQueries = 12;

static inline void add_values(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const CacheLayout& cache = tile.args.value_cache;
    Values values;
    for (int32_t e = 0; e < block.count; ++e)
        values.row[e] = tile.values + block.row[e] * cache.row_bytes;
    const bool whole = tile.value_width <= cache.head_elements;  // no register passes a head's end
    const bool few = end - begin < kManyQueries;
    if (whole && cache.dtype == kCacheF32)
        return add_values<LoadF32>(tile, block, values, begin, end);
    if (whole && cache.dtype == kCacheF16 && few)
        return add_values<LoadF16>(tile, block, values, begin, end);
    if (whole && cache.dtype == kCacheBF16 && few)
        return add_values<LoadBF16>(tile, block, values, begin, end);
    if (whole && cache.dtype == kCacheQ8_0 && few)
        return add_values<LoadQ8_0>(tile, block, values, begin, end);

    const int64_t stride =
        cache.head_elements > tile.value_width ? cache.head_elements : tile.value_width;
    const bool decoded = tile.args.values_in_keys && cache.dtype > kCacheQ8_0;  // by score()
    for (int32_t e = 0; e < block.count; ++e) {
        float* row = tile.rows + e * stride;
        if (!decoded) decode_cache(cache.dtype, values.row[e], row, cache.head_elements);
        values.row[e] = reinterpret_cast<const unsigned char*>(row);
    }
    add_values<LoadF32>(tile, block, values, begin, end);
}

// ---- Sums ----

PLAIT_INLINE void start_partial(const Tile& tile, int64_t query, float most) {
    tile.state[query].partial = {most, 0.0f, false};
    memset(tile.partial + query * tile.value_width, 0,
           static_cast<size_t>(tile.value_width) * sizeof(float));
}

// total = total and partial, and a new partial begins.
static inline void close_partials(const Tile& tile, bool maxima_known) {
    for (int64_t i = 0; i < tile.queries; ++i) {
        SoftmaxSum& a = tile.state[i].total;
        const SoftmaxSum b = tile.state[i].partial;
        if (!b.any) continue;
        const float most = larger(a.most, b.most);
        const float shift = finite_or_zero(most);
        const float x = exp_of(a.most - shift);
        const float y = exp_of(b.most - shift);
        a = {most, a.sum * x + b.sum * y, true};
        float* total = tile.total + i * tile.value_width;
        const float* partial = tile.partial + i * tile.value_width;
        for (int64_t c = 0; c < tile.value_width; c += F32::kLanes)
            (F32::load(total + c) * F32::set(x) + F32::load(partial + c) * F32::set(y))
                .store(total + c);
        start_partial(tile, i, maxima_known ? most : kMinusInfinity);
    }
}

// The sink's logit takes its share of the softmax and has no value.
static inline void write_query(const Tile& tile, int64_t query, const float* sink, float* y) {
    const SoftmaxSum& sums = tile.state[query].total;
    float scale = 1.0f;
    float all = sums.sum;
    if (sink) {
        const float shift = finite_or_zero(larger(sums.most, *sink));
        scale = exp_of(sums.most - shift);
        all = sums.sum * scale + exp_of(*sink - shift);
    }
    const float* total = tile.total + query * tile.value_width;
    for (int64_t c = 0; c < tile.args.value_dim; c += F32::kLanes) {
        const int64_t left = tile.args.value_dim - c;
        const int64_t n = left < F32::kLanes ? left : F32::kLanes;
        const F32 mean = F32::load(total + c) * F32::set(scale) / F32::set(all);
        (sums.any ? mean : F32::zero()).store(y + c, n);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
