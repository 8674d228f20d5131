// Attention of a tile: all heads that share a kv head, for a few tokens of one sequence.
//
// Per query, over blocks of keys in order, with m the running maximum (Milakov & Gimelshein 2018,
// arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135):
//     s_j = cap(scale * q . k_j)      m' = max(m, s_j)      p_j = exp(s_j - m')
//     sum = sum exp(m - m') + sum of p_j      acc = acc exp(m - m') + sum of p_j v_j
// Every q . k is summed over the head from its first element to its last, the p of a block in a
// tree over its lanes, p v from the first key to the last. So a query's bits depend on nothing but
// the query, the keys it sees and their ordinals.
#pragma once

#include "backend/cpu/kernels/cache.h"
#include "backend/cpu/kernels/key_blocks.h"

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
};
static_assert(sizeof(QueryState) <= 16 * sizeof(float));

struct Tile {
    const AttendArgs& args;
    const unsigned char* keys;    // of the kv head, in row 0
    const unsigned char* values;
    int64_t queries;
    int64_t value_width;
    float* transposed;
    float* rows;
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

// transposed[d][lane] = element d of the lane's key. Lanes without a key get another's.
template <typename Load>
PLAIT_INLINE void transpose_keys(const unsigned char* const (&key)[kKeyBlock], int64_t dim,
                                 float* transposed, Load load) {
    for (int part = 0; part < kParts; ++part) {
        const unsigned char* const* source = key + part * F32::kLanes;
        for (int64_t d = 0; d < dim; d += F32::kLanes) {
            const int64_t n = dim - d < F32::kLanes ? dim - d : F32::kLanes;
            F32 r[F32::kLanes];
            if (n == F32::kLanes) {
                for (int i = 0; i < F32::kLanes; ++i) r[i] = load(source[i], d, F32::kLanes);
            } else {
                for (int i = 0; i < F32::kLanes; ++i) r[i] = load(source[i], d, n);
            }
            transpose(r);
            float* target = transposed + d * kKeyBlock + part * F32::kLanes;
            for (int i = 0; i < n; ++i) r[i].store(target + i * kKeyBlock);
        }
    }
}

static inline void load_keys(const Tile& tile, const KeyBlock& block) {
    const CacheLayout& cache = tile.args.key_cache;
    const unsigned char* key[kKeyBlock];
    for (int64_t i = 0; i < kKeyBlock; ++i) key[i] = nullptr;
    for (int32_t e = 0; e < block.count; ++e) {
        key[block.lane[e]] = tile.keys + block.row[e] * cache.row_bytes;
        if (cache.dtype > kCacheBF16) {
            float* decoded = tile.rows + e * cache.head_elements;
            decode_cache(cache.dtype, key[block.lane[e]], decoded, cache.head_elements);
            key[block.lane[e]] = reinterpret_cast<const unsigned char*>(decoded);
        }
    }
    for (int64_t i = 0; i < kKeyBlock; ++i)
        if (!key[i]) key[i] = key[block.lane[0]];

    const int64_t dim = tile.args.key_dim;
    if (cache.dtype == kCacheF16) {
        transpose_keys(key, dim, tile.transposed, [](const unsigned char* k, int64_t d, int64_t n) {
            const uint16_t* at = reinterpret_cast<const uint16_t*>(k) + d;
            return n == F32::kLanes ? F32::load_f16(at) : F32::load_f16(at, n);
        });
    } else if (cache.dtype == kCacheBF16) {
        transpose_keys(key, dim, tile.transposed, [](const unsigned char* k, int64_t d, int64_t n) {
            const uint16_t* at = reinterpret_cast<const uint16_t*>(k) + d;
            return n == F32::kLanes ? F32::load_bf16(at) : F32::load_bf16(at, n);
        });
    } else {
        transpose_keys(key, dim, tile.transposed, [](const unsigned char* k, int64_t d, int64_t n) {
            const float* at = reinterpret_cast<const float*>(k) + d;
            return n == F32::kLanes ? F32::load(at) : F32::load(at, n);
        });
    }
}

// scores[query][lane] = q . k for `count` queries.
template <int count>
PLAIT_INLINE void dot_products(const QueryState* state, const float* transposed, int64_t dim,
                               float* scores) {
    const float* q[count];
    F32 acc[count][kParts];
    for (int i = 0; i < count; ++i) {
        q[i] = state[i].q;
        for (int part = 0; part < kParts; ++part) acc[i][part] = F32::zero();
    }
    for (int64_t d = 0; d < dim; ++d) {
        F32 k[kParts];
        for (int part = 0; part < kParts; ++part)
            k[part] = F32::load(transposed + d * kKeyBlock + part * F32::kLanes);
        for (int i = 0; i < count; ++i) {
            const F32 x = F32::set(q[i][d]);
            for (int part = 0; part < kParts; ++part) acc[i][part] = fma(x, k[part], acc[i][part]);
        }
    }
    for (int i = 0; i < count; ++i)
        for (int part = 0; part < kParts; ++part)
            acc[i][part].store(scores + i * kKeyBlock + part * F32::kLanes);
}

// As many as keep two thirds of the registers busy with sums.
constexpr int kScoreQueries = kParts * 3 > kRegisters ? 1 : kRegisters * 2 / 3 / kParts;

static inline void score(const Tile& tile, int64_t begin, int64_t end) {
    int64_t i = begin;
    const auto at = [&](int64_t query) { return tile.scores + query * kKeyBlock; };
    const int64_t dim = tile.args.key_dim;
    for (; i + kScoreQueries <= end; i += kScoreQueries)
        dot_products<kScoreQueries>(tile.state + i, tile.transposed, dim, at(i));
    if constexpr (kScoreQueries > 4)
        for (; i + 4 <= end; i += 4)
            dot_products<4>(tile.state + i, tile.transposed, dim, at(i));
    for (; i < end; ++i) dot_products<1>(tile.state + i, tile.transposed, dim, at(i));
}

// Scale, cap, and -inf where there is nothing to see.
PLAIT_INLINE void finish_scores(const Tile& tile, int64_t query, F32 (&x)[kParts]) {
    const F32 scale = F32::set(tile.args.scale);
    const F32 cap = F32::set(tile.args.softcap);
    const uint32_t visible = tile.state[query].visible;
    for (int part = 0; part < kParts; ++part) {
        x[part] = scale * F32::load(tile.scores + query * kKeyBlock + part * F32::kLanes);
        if (tile.args.softcap != 0.0f) x[part] = cap * tanh(x[part] / cap);
        x[part] = select_bits(visible >> (part * F32::kLanes), x[part], F32::set(kMinusInfinity));
    }
}

PLAIT_INLINE float larger(float a, float b) { return b > a ? b : a; }

PLAIT_INLINE float most_of(const F32 (&x)[kParts]) {
    F32 most = x[0];
    for (int part = 1; part < kParts; ++part) most = max(most, x[part]);
    return reduce_max(most);
}

// Scores to p, in place; updates the partial sum and the factor of what it held.
static inline void softmax_step(const Tile& tile, int64_t query) {
    QueryState& state = tile.state[query];
    F32 x[kParts];
    finish_scores(tile, query, x);
    SoftmaxSum& sums = state.partial;
    const float most = larger(sums.most, most_of(x));
    const float shift = finite_or_zero(most);
    state.factor = most == sums.most ? 1.0f : exp_of(sums.most - shift);
    for (int part = 0; part < kParts; ++part) {
        x[part] = select_bits(state.visible >> (part * F32::kLanes), exp(x[part] - F32::set(shift)),
                              F32::zero());
        x[part].store(tile.scores + query * kKeyBlock + part * F32::kLanes);
    }
    for (int width = kParts / 2; width > 0; width /= 2)
        for (int part = 0; part < width; ++part) x[part] = x[part] + x[part + width];
    sums.sum = sums.sum * state.factor + sum(x[0]);
    sums.most = most;
    sums.any = true;
}

// ---- Values ----

// acc[query] = acc[query] * factor + sum of p v over `n` entries, for columns of `width` registers.
template <int count, int width>
PLAIT_INLINE void add_values(const Tile& tile, int64_t query, int64_t column, const float* values,
                             int64_t stride, const uint8_t* lane, int32_t n) {
    F32 acc[count][width];
    const float* p[count];
    for (int i = 0; i < count; ++i) {
        const float* from = tile.partial + (query + i) * tile.value_width + column;
        const F32 factor = F32::set(tile.state[query + i].factor);
        p[i] = tile.scores + (query + i) * kKeyBlock;
        for (int c = 0; c < width; ++c) acc[i][c] = F32::load(from + c * F32::kLanes) * factor;
    }
    for (int32_t e = 0; e < n; ++e) {
        F32 v[width];
        for (int c = 0; c < width; ++c)
            v[c] = F32::load(values + e * stride + column + c * F32::kLanes);
        for (int i = 0; i < count; ++i) {
            const F32 weight = F32::set(p[i][lane[e]]);
            for (int c = 0; c < width; ++c) acc[i][c] = fma(weight, v[c], acc[i][c]);
        }
    }
    for (int i = 0; i < count; ++i) {
        float* to = tile.partial + (query + i) * tile.value_width + column;
        for (int c = 0; c < width; ++c) acc[i][c].store(to + c * F32::kLanes);
    }
}

template <int count>
PLAIT_INLINE void add_values(const Tile& tile, int64_t query, const float* values, int64_t stride,
                             const uint8_t* lane, int32_t n) {
    constexpr int kWidth = kRegisters / 8;
    int64_t column = 0;
    for (; column + kWidth * F32::kLanes <= tile.value_width; column += kWidth * F32::kLanes)
        add_values<count, kWidth>(tile, query, column, values, stride, lane, n);
    for (; column < tile.value_width; column += F32::kLanes)
        add_values<count, 1>(tile, query, column, values, stride, lane, n);
}

// The rows of the block's values as floats, [entries, value_width], padded with zeros.
static inline void load_values(const Tile& tile, const KeyBlock& block, int64_t stride) {
    const CacheLayout& cache = tile.args.value_cache;
    for (int32_t e = 0; e < block.count; ++e) {
        float* row = tile.rows + e * stride;
        decode_cache(cache.dtype, tile.values + block.row[e] * cache.row_bytes, row,
                     cache.head_elements);
        for (int64_t i = tile.args.value_dim; i < stride; ++i) row[i] = 0.0f;
    }
}

static inline void add_values(const Tile& tile, const KeyBlock& block, int64_t begin, int64_t end) {
    const int64_t padded = tile.args.value_cache.head_elements;
    const int64_t stride = padded > tile.value_width ? padded : tile.value_width;
    load_values(tile, block, stride);
    constexpr int kTogether = 4;
    for (int64_t i = begin; i < end;) {
        int64_t whole = i;  // queries from i on that see every key of the block
        while (whole < end && whole < i + kTogether && tile.state[whole].visible == block.lanes)
            ++whole;
        if (whole == i + kTogether) {
            add_values<kTogether>(tile, i, tile.rows, stride, block.lane, block.count);
            i += kTogether;
            continue;
        }
        const uint32_t visible = tile.state[i].visible;
        int32_t from = 0;
        while (from < block.count && (visible >> block.lane[from] & 1) == 0) ++from;
        int32_t to = from;
        while (to < block.count && (visible >> block.lane[to] & 1) != 0) ++to;
        if (from < to)
            add_values<1>(tile, i, tile.rows + from * stride, stride, block.lane + from, to - from);
        ++i;
    }
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
