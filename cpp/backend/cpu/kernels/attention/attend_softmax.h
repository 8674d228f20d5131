// The running softmax of each query over blocks of keys in order, where m is the largest score so
// far (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135):
//     s_j = cap(scale * q . k_j) + bias_j      m' = max(m, s_j)      p_j = exp(s_j - m')
//     sum = sum exp(m - m') + sum of p_j      acc = acc exp(m - m') + sum of p_j v_j
// The p are summed by lane over a split, and the lanes are added at its end; p v is summed from the
// first key to the last. So a result depends only on the query, the keys that it sees and their
// ordinals.
#pragma once

#include "backend/cpu/kernels/attention/attend_tile.h"

namespace plait::cpu::PLAIT_ISA {

// exp(x) for x <= 0.
PLAIT_INLINE float exp_of(float x) {
    float y[F32::kLanes];
    exp_nonpositive(F32::set(x)).store(y);
    return y[0];
}

// The value to subtract before exp(): with a maximum of -inf, scores of -inf would give NaN.
PLAIT_INLINE float finite_or_zero(float max_score) {
    return max_score == kMinusInfinity ? 0.0f : max_score;
}

PLAIT_INLINE float larger(float a, float b) { return b > a ? b : a; }

// Lists the positions of the block's keys by lane, for ALiBi.
PLAIT_INLINE void list_positions(const Tile& tile, const KeyBlock& block) {
    if (tile.args.bias_kind != PositionBias::alibi) return;
    for (int64_t i = 0; i < kKeyBlock; ++i) tile.positions[i] = 0.0f;
    for (int32_t e = 0; e < block.count; ++e)
        tile.positions[block.lane[e]] = static_cast<float>(tile.key_positions[block.key[e]]);
}

static inline void add_alibi(const Tile& tile, const Query& query, F32 (&x)[kScoreRegisters]) {
    const F32 position = F32::set(static_cast<float>(query.position));
    for (int part = 0; part < kScoreRegisters; ++part) {
        const F32 distance = abs(F32::load(tile.positions + part * F32::kLanes) - position);
        x[part] = fma(F32::set(-query.slope), distance, x[part]);
    }
}

static inline void add_buckets(const Tile& tile, const KeyBlock& block, const Query& query,
                               F32 (&x)[kScoreRegisters]) {
    const int32_t farthest = tile.args.max_distance;
    float bias[kKeyBlock] = {};
    for (int32_t e = 0; e < block.count; ++e) {
        const int32_t d = tile.key_positions[block.key[e]] - query.position;
        bias[block.lane[e]] = query.biases[d < -farthest ? -farthest : d > farthest ? farthest : d];
    }
    for (int part = 0; part < kScoreRegisters; ++part)
        x[part] = x[part] + F32::load(bias + part * F32::kLanes);
}

// Applies scale, cap and bias to the scores of query i; keys that it does not see get -inf.
PLAIT_INLINE void finish_scores(const Tile& tile, const KeyBlock& block, int64_t i,
                                F32 (&x)[kScoreRegisters]) {
    const Query& query = tile.query[i];
    const F32 scale = F32::set(tile.args.scale);
    const F32 cap = F32::set(tile.args.softcap);
    for (int part = 0; part < kScoreRegisters; ++part) {
        x[part] = scale * F32::load(tile.scores + i * kKeyBlock + part * F32::kLanes);
        if (tile.args.softcap != 0.0f) x[part] = cap * tanh(x[part] / cap);
    }
    if (tile.args.bias_kind == PositionBias::alibi) add_alibi(tile, query, x);
    if (tile.args.bias_kind == PositionBias::buckets) add_buckets(tile, block, query, x);
    if (query.visible == UINT32_MAX) return;
    for (int part = 0; part < kScoreRegisters; ++part)
        x[part] =
            select_bits(query.visible >> (part * F32::kLanes), x[part], F32::set(kMinusInfinity));
}

// Returns the maximum of `max_score` and the scores. Ignores NaN, because the weight of a NaN score
// is NaN for any maximum.
PLAIT_INLINE float max_of(float max_score, const F32 (&x)[kScoreRegisters]) {
    F32 m = x[0];
    for (int part = 1; part < kScoreRegisters; ++part) m = max(m, x[part]);
    return any_less(F32::set(max_score), m) ? larger(max_score, reduce_max(m)) : max_score;
}

PLAIT_INLINE void start_partial(const Tile& tile, int64_t i, float max_score) {
    tile.query[i].partial = {max_score, 0.0f, 0};
    F32::zero().store(tile.lanes + i * 16);
    memset(tile.partial + i * tile.width, 0, static_cast<size_t>(tile.width) * sizeof(float));
}

// Replaces the scores by p, indexed by entry of the block, and updates the partial sum and the
// factor of the sums so far.
static inline void softmax_step(const Tile& tile, const KeyBlock& block, int64_t i) {
    Query& query = tile.query[i];
    F32 x[kScoreRegisters];
    finish_scores(tile, block, i, x);
    const float before = query.partial.max;
    const float max_score = max_of(before, x);
    const float shift = finite_or_zero(max_score);
    query.factor = max_score == before ? 1.0f : exp_of(before - shift);
    query.partial.max = max_score;
    query.partial.has_keys = 1;
    float* p = tile.scores + i * kKeyBlock;
    for (int part = 0; part < kScoreRegisters; ++part) {
        x[part] = exp_nonpositive(x[part] - F32::set(shift));
        x[part].store(p + part * F32::kLanes);
    }
    if (block.lane[block.count - 1] != block.count - 1)
        for (int32_t e = 0; e < block.count; ++e) p[e] = p[block.lane[e]];  // e <= lane[e]
    for (int width = kScoreRegisters / 2; width > 0; width /= 2)
        for (int part = 0; part < width; ++part) x[part] = x[part] + x[part + width];
    float* lanes = tile.lanes + i * 16;
    (F32::load(lanes) * F32::set(query.factor) + x[0]).store(lanes);
}

PLAIT_INLINE SoftmaxSum closed_partial(const Tile& tile, int64_t i) {
    SoftmaxSum partial = tile.query[i].partial;
    partial.sum = sum(F32::load(tile.lanes + i * 16));
    return partial;
}

// Merges `partial` into `total`.
static inline void merge(SoftmaxSum& total, float* total_values, const SoftmaxSum& partial,
                         const float* partial_values, int64_t width) {
    if (!partial.has_keys) return;
    if (!total.has_keys) {
        total = partial;
        memcpy(total_values, partial_values, static_cast<size_t>(width) * sizeof(float));
        return;
    }
    const float max_score = larger(total.max, partial.max);
    const float shift = finite_or_zero(max_score);
    const float x = exp_of(total.max - shift);
    const float y = exp_of(partial.max - shift);
    total = {max_score, total.sum * x + partial.sum * y, 1};
    for (int64_t c = 0; c < width; c += F32::kLanes)
        (F32::load(total_values + c) * F32::set(x) + F32::load(partial_values + c) * F32::set(y))
            .store(total_values + c);
}

// Stores the weighted mean of the values in y. The sink's logit has a weight in the softmax, but no
// value.
static inline void write_mean(const AttendArgs& args, const SoftmaxSum& total, const float* values,
                              const float* sink, float* y) {
    float scale = 1.0f;
    float all = total.sum;
    if (sink) {
        const float shift = finite_or_zero(larger(total.max, *sink));
        scale = exp_of(total.max - shift);
        all = total.sum * scale + exp_of(*sink - shift);
    }
    for (int64_t c = 0; c < args.value_dim; c += F32::kLanes) {
        const int64_t left = args.value_dim - c;
        const F32 mean =
            total.has_keys ? F32::load(values + c) * F32::set(scale) / F32::set(all) : F32::zero();
        mean.store(y + c, left < F32::kLanes ? left : F32::kLanes);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
