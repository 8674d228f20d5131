// A row of a tile of a state, in registers, and sums down the rows.
#pragma once

#include "backend/cpu/kernels/recurrence/recurrence.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

struct Row {
    static constexpr int kParts = kTileColumns / F32::kLanes;
    F32 part[kParts];
};

template <typename F>
PLAIT_INLINE Row each_part(F f) {
    Row row;
    for (int i = 0; i < Row::kParts; ++i) row.part[i] = f(i);
    return row;
}
PLAIT_INLINE Row operator+(const Row& a, const Row& b) {
    return each_part([&](int i) { return a.part[i] + b.part[i]; });
}
PLAIT_INLINE Row operator-(const Row& a, const Row& b) {
    return each_part([&](int i) { return a.part[i] - b.part[i]; });
}
PLAIT_INLINE Row operator*(F32 a, const Row& b) {
    return each_part([&](int i) { return a * b.part[i]; });
}
PLAIT_INLINE Row operator*(const Row& a, const Row& b) {
    return each_part([&](int i) { return a.part[i] * b.part[i]; });
}
PLAIT_INLINE Row fma(F32 a, const Row& b, const Row& c) {
    return each_part([&](int i) { return fma(a, b.part[i], c.part[i]); });
}
PLAIT_INLINE Row fma(const Row& a, const Row& b, const Row& c) {
    return each_part([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}
PLAIT_INLINE Row exp2(const Row& a) {
    return each_part([&](int i) { return exp2(a.part[i]); });
}

// The columns of a tile: all 32 or fewer.
template <bool kWhole>
struct Columns {
    int64_t n;

    PLAIT_INLINE_MEMBER int64_t lanes(int part) const {
        const int64_t left = n - part * F32::kLanes;
        return left < 0 ? 0 : left < F32::kLanes ? left : F32::kLanes;
    }
    PLAIT_INLINE_MEMBER Row load(const float* p) const {
        return each_part([&](int i) {
            const float* at = p + i * F32::kLanes;
            if constexpr (kWhole) return F32::load(at);
            return lanes(i) == 0 ? F32::zero() : F32::load(at, lanes(i));
        });
    }
    PLAIT_INLINE_MEMBER void store(const Row& row, float* p) const {
        for (int i = 0; i < Row::kParts; ++i) {
            float* at = p + i * F32::kLanes;
            if constexpr (kWhole)
                row.part[i].store(at);
            else if (lanes(i) != 0)
                row.part[i].store(at, lanes(i));
        }
    }
};

// sum over i < n of what f(i, sum) adds to sum: row i in chain i % kChains, so that no addition
// waits for the one before it.
template <int kChains, typename F>
PLAIT_INLINE Row sum_in_chains(int64_t n, F f) {
    Row sums[kChains];
    for (Row& sum : sums) sum = each_part([](int) { return F32::zero(); });
    int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
        for (int chain = 0; chain < kChains; ++chain) sums[chain] = f(i + chain, sums[chain]);
    for (; i < n; ++i) sums[0] = f(i, sums[0]);
    for (int half = kChains / 2; half > 0; half /= 2)
        for (int chain = 0; chain < half; ++chain) sums[chain] = sums[chain] + sums[chain + half];
    return sums[0];
}

// Where f reads a row of the state, and where it makes a new one.
template <typename F>
PLAIT_INLINE Row sum_rows(int64_t n, F f) {
    return sum_in_chains < Row::kParts <= 2 ? 4 : 2 > (n, f);
}
template <typename F>
PLAIT_INLINE Row step_rows(int64_t n, F f) {
    return sum_in_chains<2>(n, f);
}

// A row of the next token, on its way while this one is worked on: the caches do not foresee rows of
// one head. Sooner than that it would drive out others, since tokens are often 4 KiB apart.
PLAIT_INLINE void prefetch(const float* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

// Takes a tile through the tokens of its sequence: token(columns, t, from, to) is one token's step
// of the tile's state.
template <typename Token>
PLAIT_INLINE void walk(const TileTask& tile, Token token) {
    const float* from = tile.from;
    for (int64_t t = tile.tokens.begin; t < tile.tokens.end; ++t) {
        if (tile.n == kTileColumns)
            token(Columns<true>{kTileColumns}, t, from, tile.to);
        else
            token(Columns<false>{tile.n}, t, from, tile.to);
        from = tile.to;
    }
}

}  // namespace plait::cpu::PLAIT_ISA
