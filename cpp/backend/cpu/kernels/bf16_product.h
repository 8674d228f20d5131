// Products with BF16 weights where the machine multiplies such numbers two columns at a time
// (vdpbf16ps): the rows are rounded to BF16 as well, sums stay f32. Register tiles: P panels times T
// rows.
#pragma once

#include "backend/cpu/kernels/product_job.h"

#ifdef PLAIT_ISA_AVX512
namespace plait::cpu::PLAIT_ISA {

// Two columns of a panel, in pairs by lane: from [2][lanes], or one column and zeros.
struct ColumnPair {
    __m512i v;
    PLAIT_INLINE_MEMBER static ColumnPair load(const uint16_t* p) {
        // Word 2 i of the result is word i, word 2 i + 1 is word 16 + i.
        const __m512i low = _mm512_cvtepu8_epi16(
            _mm256_setr_epi8(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,
                             10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
        return {_mm512_permutexvar_epi16(low, _mm512_loadu_si512(p))};
    }
    PLAIT_INLINE_MEMBER static ColumnPair load_one(const uint16_t* p) {
        return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
};

// y += pair . (x[0], x[1])
PLAIT_INLINE F32 add_dot(F32 y, ColumnPair pair, const uint16_t* x) {
    int both;
    memcpy(&both, x, 4);
    return {_mm512_dpbf16_ps(y.v, (__m512bh)pair.v, (__m512bh)_mm512_set1_epi32(both))};
}

template <int P, int T>
PLAIT_INLINE void bf16_tile(const Job& job, const uint16_t* const* rows, int64_t panel) {
    constexpr int kPanel = F32::kLanes;
    const PackedWeight& weight = *job.product->weight;
    const uint16_t* w =
        reinterpret_cast<const uint16_t*>(job.product->matrix + panel * weight.panel_bytes);
    const int64_t next = weight.panel_bytes / 2;
    const uint16_t* x[T];
    F32 y[P][T];
    for (int r = 0; r < T; ++r) x[r] = rows[r < job.rows ? r : 0];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();
    const auto add = [&](int64_t k, auto load) {
        ColumnPair pair[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) pair[p] = load(w + p * next + k * kPanel);
#pragma GCC unroll 8
        for (int r = 0; r < T; ++r)
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) y[p][r] = add_dot(y[p][r], pair[p], x[r] + k);
    };
    int64_t k = 0;
    for (; k + 2 <= weight.columns; k += 2)
        add(k, [](const uint16_t* p) { return ColumnPair::load(p); });
    if (k < weight.columns) add(k, [](const uint16_t* p) { return ColumnPair::load_one(p); });
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (r < job.rows) store(job, r, panel + p, y[p][r]);
}

template <int T>
void bf16_rows(const Job& job, const uint16_t* const* x) {
    constexpr int P = T == 1   ? 8
                      : T <= 3 ? 4
                               : 2;  // enough sums at once to hide the latency of one
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) bf16_tile<P, T>(job, x, p);
    if constexpr (P > 2)
        for (; p + 2 <= job.end; p += 2) bf16_tile<2, T>(job, x, p);
    for (; p < job.end; ++p) bf16_tile<1, T>(job, x, p);
}

// Scratch: the rows in BF16, a zero after each.
PLAIT_INLINE void multiply_bf16(const Product& product, int64_t begin, int64_t end,
                                unsigned char* scratch) {
    const int64_t columns = product.weight->columns, stride = columns + 1;
    each_tile_of_rows(product, begin, end, [&](const Job& job, int64_t i) {
        const uint16_t* rows[kTileRows];
        for (int r = 0; r < job.rows; ++r) {
            const float* x = reinterpret_cast<const float*>(product.x) +
                             product.row(i + r) / product.x_share * columns;
            uint16_t* to = reinterpret_cast<uint16_t*>(scratch) + r * stride;
            int64_t k = 0;
            for (; k + F32::kLanes <= columns; k += F32::kLanes)
                F32::load(x + k).store_bf16(to + k);
            if (k < columns) F32::load(x + k, columns - k).store_bf16(to + k, columns - k);
            to[columns] = 0;
            rows[r] = to;
        }
        switch (job.rows) {
        case 1: return bf16_rows<1>(job, rows);
        case 2: return bf16_rows<2>(job, rows);
        case 3:
        case 4: return bf16_rows<4>(job, rows);
        case 5:
        case 6: return bf16_rows<6>(job, rows);
        default: return bf16_rows<8>(job, rows);
        }
    });
}

}  // namespace plait::cpu::PLAIT_ISA
#endif
