// The running softmax of each query, over blocks of keys in order, with m the largest score so far
// (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135):
//     s_j = cap(scale * q . k_j) + bias_j      m' = max(m, s_j)      p_j = exp(s_j - m')
//     sum = sum exp(m - m') + sum of p_j      acc = acc exp(m - m') + sum of p_j v_j
// The p are summed in lanes over a split and the lanes at its end, p v from the first key to the
// last. So a query's bits depend on nothing but the query, the keys it sees and their ordinals.
#pragma once

#include "backend/cpu/kernels/attention/attend_tile.h"
#include "backend/cpu/kernels/attention/position_bias.h"

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE float exp_of(float x) {
    float y[F32::kLanes];
    exp(F32::set(x)).store(y);
    return y[0];
}

// What is subtracted before exp(): a maximum of -inf would make NaN of scores that are -inf.
PLAIT_INLINE float finite_or_zero(float most) { return most == kMinusInfinity ? 0.0f : most; }

PLAIT_INLINE float larger(float a, float b) { return b > a ? b : a; }

// Of the block's keys, by lane.
PLAIT_INLINE void list_positions(const Tile& tile, const KeyBlock& block) {
    if (tile.args.bias_kind != kAlibi) return;
    for (int64_t i = 0; i < kKeyBlock; ++i) tile.positions[i] = 0.0f;
    for (int32_t e = 0; e < block.count; ++e)
        tile.positions[block.lane[e]] = static_cast<float>(tile.key_positions[block.key[e]]);
}

static inline void add_alibi(const Tile& tile, const Query& query, F32 (&x)[kParts]) {
    const F32 position = F32::set(static_cast<float>(query.position));
    for (int part = 0; part < kParts; ++part) {
        const F32 distance = abs(F32::load(tile.positions + part * F32::kLanes) - position);
        x[part] = fma(F32::set(-query.slope), distance, x[part]);
    }
}

static inline void add_buckets(const Tile& tile, const KeyBlock& block, const Query& query,
                               F32 (&x)[kParts]) {
    const int32_t most = tile.args.max_distance;
    float bias[kKeyBlock] = {};
    for (int32_t e = 0; e < block.count; ++e) {
        const int32_t d = tile.key_positions[block.key[e]] - query.position;
        bias[block.lane[e]] = query.biases[d < -most ? -most : d > most ? most : d];
    }
    for (int part = 0; part < kParts; ++part)
        x[part] = x[part] + F32::load(bias + part * F32::kLanes);
}

// Scale, cap, bias, and -inf where there is nothing to see.
PLAIT_INLINE void finish_scores(const Tile& tile, const KeyBlock& block, int64_t i,
                                F32 (&x)[kParts]) {
    const Query& query = tile.query[i];
    const F32 scale = F32::set(tile.args.scale);
    const F32 cap = F32::set(tile.args.softcap);
    for (int part = 0; part < kParts; ++part) {
        x[part] = scale * F32::load(tile.scores + i * kKeyBlock + part * F32::kLanes);
        if (tile.args.softcap != 0.0f) x[part] = cap * tanh(x[part] / cap);
    }
    if (tile.args.bias_kind == kAlibi) add_alibi(tile, query, x);
    if (tile.args.bias_kind == kBuckets) add_buckets(tile, block, query, x);
    if (query.visible == UINT32_MAX) return;
    for (int part = 0; part < kParts; ++part)
        x[part] =
            select_bits(query.visible >> (part * F32::kLanes), x[part], F32::set(kMinusInfinity));
}

// The larger of `most` and the scores. A NaN counts for nothing here; its weight is one anyway.
PLAIT_INLINE float most_of(float most, const F32 (&x)[kParts]) {
    F32 m = x[0];
    for (int part = 1; part < kParts; ++part) m = max(m, x[part]);
    return any_less(F32::set(most), m) ? larger(most, reduce_max(m)) : most;
}

PLAIT_INLINE void start_partial(const Tile& tile, int64_t i, float most) {
    tile.query[i].partial = {most, 0.0f, 0};
    F32::zero().store(tile.lanes + i * 16);
    memset(tile.partial + i * tile.width, 0, static_cast<size_t>(tile.width) * sizeof(float));
}

// Scores to p, by entry of the block, in place; updates the partial sum and the factor of what it
// held.
static inline void softmax_step(const Tile& tile, const KeyBlock& block, int64_t i) {
    Query& query = tile.query[i];
    F32 x[kParts];
    finish_scores(tile, block, i, x);
    const float before = query.partial.most;
    const float most = most_of(before, x);
    const float shift = finite_or_zero(most);
    query.factor = most == before ? 1.0f : exp_of(before - shift);
    query.partial.most = most;
    query.partial.any = 1;
    float* p = tile.scores + i * kKeyBlock;
    for (int part = 0; part < kParts; ++part) {
        x[part] = select_bits(query.visible >> (part * F32::kLanes), exp(x[part] - F32::set(shift)),
                              F32::zero());
        x[part].store(p + part * F32::kLanes);
    }
    if (block.lane[block.count - 1] != block.count - 1)
        for (int32_t e = 0; e < block.count; ++e) p[e] = p[block.lane[e]];  // e <= lane[e]
    for (int width = kParts / 2; width > 0; width /= 2)
        for (int part = 0; part < width; ++part) x[part] = x[part] + x[part + width];
    float* lanes = tile.lanes + i * 16;
    (F32::load(lanes) * F32::set(query.factor) + x[0]).store(lanes);
}

PLAIT_INLINE SoftmaxSum finished_partial(const Tile& tile, int64_t i) {
    SoftmaxSum partial = tile.query[i].partial;
    partial.sum = sum(F32::load(tile.lanes + i * 16));
    return partial;
}

// total = total and partial
static inline void merge(SoftmaxSum& total, float* total_values, const SoftmaxSum& partial,
                         const float* partial_values, int64_t width) {
    if (!partial.any) return;
    if (!total.any) {
        total = partial;
        memcpy(total_values, partial_values, static_cast<size_t>(width) * sizeof(float));
        return;
    }
    const float most = larger(total.most, partial.most);
    const float shift = finite_or_zero(most);
    const float x = exp_of(total.most - shift);
    const float y = exp_of(partial.most - shift);
    total = {most, total.sum * x + partial.sum * y, 1};
    for (int64_t c = 0; c < width; c += F32::kLanes)
        (F32::load(total_values + c) * F32::set(x) + F32::load(partial_values + c) * F32::set(y))
            .store(total_values + c);
}

// The sink's logit takes its share of the softmax and has no value.
static inline void write_mean(const AttendArgs& args, const SoftmaxSum& total, const float* values,
                              const float* sink, float* y) {
    float scale = 1.0f;
    float all = total.sum;
    if (sink) {
        const float shift = finite_or_zero(larger(total.most, *sink));
        scale = exp_of(total.most - shift);
        all = total.sum * scale + exp_of(*sink - shift);
    }
    for (int64_t c = 0; c < args.value_dim; c += F32::kLanes) {
        const int64_t left = args.value_dim - c;
        const F32 mean =
            total.any ? F32::load(values + c) * F32::set(scale) / F32::set(all) : F32::zero();
        mean.store(y + c, left < F32::kLanes ? left : F32::kLanes);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
