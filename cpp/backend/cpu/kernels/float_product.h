// Products of f32 rows with float weights: y = fma(w, x, y), column after column. Register tiles: P
// panels times T rows.
#pragma once

#include "backend/cpu/kernels/product_job.h"

namespace plait::cpu::PLAIT_ISA {

struct WeightF32 {
    using Element = float;
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return F32::load(p); }
};
struct WeightF16 {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_f16(p); }
};
struct WeightBF16 {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_bf16(p); }
};

// Rows [row, row + T) of the job, x the first of them; those not in use repeat another.
template <class W, int P, int T>
PLAIT_INLINE void float_tile(const Job& job, const float* const* x, int row, int64_t panel) {
    constexpr int kPanel = F32::kLanes;
    const PackedWeight& weight = *job.product->weight;
    using Element = typename W::Element;
    const Element* w[P];
    F32 y[P][T];
    for (int p = 0; p < P; ++p)
        w[p] = reinterpret_cast<const Element*>(job.product->matrix +
                                                (panel + p) * weight.panel_bytes);
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();
    for (int64_t k = 0; k < weight.columns; ++k) {
        F32 column[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) column[p] = W::load(w[p] + k * kPanel);
#pragma GCC unroll 8
        for (int r = 0; r < T; ++r) {
            const F32 value = F32::set(x[r][k]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) y[p][r] = fma(column[p], value, y[p][r]);
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (row + r < job.rows) store(job, row + r, panel + p, y[p][r]);
}

template <class W, int T>
int float_rows(const Job& job, const float* const* rows, int row) {
    constexpr int P = T <= 3 ? 4 : 2;  // enough sums at once to hide the latency of one
    const float* x[T];
    for (int r = 0; r < T; ++r) x[r] = rows[row + r < job.rows ? row + r : row];
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) float_tile<W, P, T>(job, x, row, p);
    if constexpr (P > 2)
        for (; p + 2 <= job.end; p += 2) float_tile<W, 2, T>(job, x, row, p);
    for (; p < job.end; ++p) float_tile<W, 1, T>(job, x, row, p);
    return T;
}

// The next tile of `left` rows; the number of rows it took, or more.
template <class W>
PLAIT_INLINE int next_float_rows(const Job& job, const float* const* rows, int row, int left) {
    switch (left) {
    case 1: return float_rows<W, 1>(job, rows, row);
    case 2: return float_rows<W, 2>(job, rows, row);
    case 3: return float_rows<W, 3>(job, rows, row);
    case 4: return float_rows<W, 4>(job, rows, row);
    }
    if constexpr (kRegisters < 32) return float_rows<W, 4>(job, rows, row);
    return left <= 6 ? float_rows<W, 6>(job, rows, row) : float_rows<W, 8>(job, rows, row);
}

template <class W>
void multiply_floats(const Product& product, int64_t begin, int64_t end, unsigned char*) {
    each_tile_of_rows(product, begin, end, [&](const Job& job, int64_t i) {
        const float* rows[kTileRows];
        for (int r = 0; r < job.rows; ++r)
            rows[r] = reinterpret_cast<const float*>(product.x) +
                      product.row(i + r) / product.x_share * product.weight->columns;
        for (int row = 0; row < job.rows;)
            row += next_float_rows<W>(job, rows, row, job.rows - row);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
