// Rows of a state's tile in registers, sums over the rows, and the transposition of per-channel
// parameters.
#pragma once

#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

struct StateRow {
    static constexpr int kRegisters = kTileColumns / F32::kLanes;
    F32 part[kRegisters];
};

template <typename F>
PLAIT_INLINE StateRow each_part(F f) {
    StateRow row;
    for (int i = 0; i < StateRow::kRegisters; ++i) row.part[i] = f(i);
    return row;
}
PLAIT_INLINE StateRow operator+(const StateRow& a, const StateRow& b) {
    return each_part([&](int i) { return a.part[i] + b.part[i]; });
}
PLAIT_INLINE StateRow operator-(const StateRow& a, const StateRow& b) {
    return each_part([&](int i) { return a.part[i] - b.part[i]; });
}
PLAIT_INLINE StateRow operator*(F32 a, const StateRow& b) {
    return each_part([&](int i) { return a * b.part[i]; });
}
PLAIT_INLINE StateRow operator*(const StateRow& a, const StateRow& b) {
    return each_part([&](int i) { return a.part[i] * b.part[i]; });
}
PLAIT_INLINE StateRow fma(F32 a, const StateRow& b, const StateRow& c) {
    return each_part([&](int i) { return fma(a, b.part[i], c.part[i]); });
}
PLAIT_INLINE StateRow fma(const StateRow& a, const StateRow& b, const StateRow& c) {
    return each_part([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}
PLAIT_INLINE StateRow exp2(const StateRow& a) {
    return each_part([&](int i) { return exp2(a.part[i]); });
}

// The columns of a tile: 32 if kWhole, otherwise n.
template <bool kWhole>
struct TileColumns {
    int64_t n;

    PLAIT_INLINE_MEMBER int64_t lanes(int part) const {
        const int64_t left = n - part * F32::kLanes;
        return left < 0 ? 0 : left < F32::kLanes ? left : F32::kLanes;
    }
    PLAIT_INLINE_MEMBER StateRow load(const float* p) const {
        return each_part([&](int i) {
            const float* at = p + i * F32::kLanes;
            if constexpr (kWhole) return F32::load(at);
            return lanes(i) == 0 ? F32::zero() : F32::load(at, lanes(i));
        });
    }
    PLAIT_INLINE_MEMBER void store(const StateRow& row, float* p) const {
        for (int i = 0; i < StateRow::kRegisters; ++i) {
            float* at = p + i * F32::kLanes;
            if constexpr (kWhole)
                row.part[i].store(at);
            else if (lanes(i) != 0)
                row.part[i].store(at, lanes(i));
        }
    }
};

// Applies sum = f(i, sum) for all i < n and returns the sum. Row i is added in chain i % kChains,
// so that no addition waits for the one before it.
template <int kChains, typename F>
PLAIT_INLINE StateRow sum_in_chains(int64_t n, F f) {
    StateRow sums[kChains];
    for (StateRow& sum : sums) sum = each_part([](int) { return F32::zero(); });
    int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
        for (int chain = 0; chain < kChains; ++chain) sums[chain] = f(i + chain, sums[chain]);
    for (; i < n; ++i) sums[0] = f(i, sums[0]);
    for (int half = kChains / 2; half > 0; half /= 2)
        for (int chain = 0; chain < half; ++chain) sums[chain] = sums[chain] + sums[chain + half];
    return sums[0];
}

// sum_rows() is for functions that read rows of the state, step_rows() for those that also write
// them.
template <typename F>
PLAIT_INLINE StateRow sum_rows(int64_t n, F f) {
    return sum_in_chains < StateRow::kRegisters <= 2 ? 4 : 2 > (n, f);
}
template <typename F>
PLAIT_INLINE StateRow step_rows(int64_t n, F f) {
    return sum_in_chains<2>(n, f);
}

// Prefetches a row of the next token while this one is computed: hardware prefetchers do not
// predict rows of one head. Earlier prefetches would evict other rows, since tokens are often 4 KiB
// apart.
PLAIT_INLINE void prefetch(const float* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

// Calls token(columns, t, from, to) for each token t of the tile's sequence in order, to update the
// tile's state.
template <typename Token>
PLAIT_INLINE void for_each_token(const TileTask& tile, Token token) {
    const float* from = tile.from;
    for (int64_t t = tile.tokens.begin; t < tile.tokens.end; ++t) {
        if (tile.n == kTileColumns)
            token(TileColumns<true>{kTileColumns}, t, from, tile.to);
        else
            token(TileColumns<false>{tile.n}, t, from, tile.to);
        from = tile.to;
    }
}

// Files store per-channel parameters as [channels, k].
// to[j, c] = factor * from[c, j] for c < n. Rows of `to` are `stride` floats apart: a whole number
// of registers, and at least n. The remainder of the last register is zero.
PLAIT_INLINE void transpose_channels(const float* from, int64_t n, int64_t k, float factor,
                                     float* to, int64_t stride) {
    constexpr int64_t kLanes = F32::kLanes;
    for (int64_t c = 0; c < n; c += kLanes) {
        for (int64_t j = 0; j < k; j += kLanes) {
            const int64_t rows = k - j < kLanes ? k - j : kLanes;
            F32 square[kLanes];
            for (int64_t i = 0; i < kLanes; ++i)
                square[i] = c + i < n ? F32::load(from + (c + i) * k + j, rows) : F32::zero();
            transpose(square);
            for (int64_t i = 0; i < rows; ++i)
                (F32::set(factor) * square[i]).store(to + (j + i) * stride + c);
        }
    }
}

}  // namespace plait::cpu::PLAIT_ISA
