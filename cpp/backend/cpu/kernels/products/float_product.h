// Products with float weights.
#pragma once

#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::PLAIT_ISA {

// Products with float weights: y = fma(w, x, y), column after column. BF16 weights may be multiplied
// by vdpbf16ps instead, two columns at a time of rows that are rounded to BF16 as well, sums in f32.
// It does twice the work of an fma, for which processors with AMX take four times as long.
struct OneColumn {
    using Input = float;
    static constexpr int kColumns = 1;
    PLAIT_INLINE_MEMBER static const float* row(const float* x, int64_t, unsigned char*) {
        return x;
    }
    PLAIT_INLINE_MEMBER static F32 add(F32 y, F32 column, const float* x) {
        return fma(column, F32::set(*x), y);
    }
};
struct WeightF32 : OneColumn {
    using Element = float;
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return F32::load(p); }
};
struct WeightF16 : OneColumn {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_f16(p); }
};

struct WeightBF16 : OneColumn {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_bf16(p); }
};

#ifdef PLAIT_ISA_AVX512
struct PairsBF16 {
    using Element = uint16_t;
    using Input = uint16_t;
    static constexpr int kColumns = 2;
    // In BF16, a zero behind.
    PLAIT_INLINE_MEMBER static const uint16_t* row(const float* x, int64_t columns,
                                                   unsigned char* scratch) {
        auto* to = reinterpret_cast<uint16_t*>(scratch);
        int64_t k = 0;
        for (; k + F32::kLanes <= columns; k += F32::kLanes) F32::load(x + k).store_bf16(to + k);
        if (k < columns) F32::load(x + k, columns - k).store_bf16(to + k, columns - k);
        to[columns] = 0;
        return to;
    }
    // Two columns of a panel, in pairs by lane: from [2][lanes], or one column and zeros.
    PLAIT_INLINE_MEMBER static __m512i load(const uint16_t* p) {
        // Word 2 i of the result is word i, word 2 i + 1 is word 16 + i.
        const __m512i low = _mm512_cvtepu8_epi16(
            _mm256_setr_epi8(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25,
                             10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
        return _mm512_permutexvar_epi16(low, _mm512_loadu_si512(p));
    }
    PLAIT_INLINE_MEMBER static __m512i load_one(const uint16_t* p) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    // y += pair . (x[0], x[1])
    PLAIT_INLINE_MEMBER static F32 add(F32 y, __m512i pair, const uint16_t* x) {
        int both;
        memcpy(&both, x, 4);
        return {_mm512_dpbf16_ps(y.v, (__m512bh)pair, (__m512bh)_mm512_set1_epi32(both))};
    }
};
#endif

template <class W>
struct FloatTiles {
    using Element = typename W::Element;
    static constexpr int kAsk = 8;  // columns between two ask()
    static constexpr int kHigh = kRegisters == 32 ? 8 : 4;
    static constexpr int kCodes = kAsk * F32::kLanes * static_cast<int>(sizeof(Element));
    static constexpr int kAll = kCodes;

    // kTileRows of them: those not in use repeat another.
    struct Rows {
        const typename W::Input* const* x;
        PLAIT_INLINE_MEMBER Rows from(int row) const { return {x + row}; }
    };

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const Job& job, const Rows& rows, int row, int64_t first,
                                         Ahead ahead) {
        constexpr int kPanel = F32::kLanes;
        const PackedWeight& weight = *job.product->weight;
        const Element* w =
            reinterpret_cast<const Element*>(job.product->matrix + first * weight.panel_bytes);
        const int64_t next = weight.panel_bytes / static_cast<int64_t>(sizeof(Element));
        const typename W::Input* x[T];
        for (int r = 0; r < T; ++r) x[r] = rows.x[r];
        F32 y[P][T];
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < T; ++r) y[p][r] = F32::zero();
        const auto load = [](const Element* p) { return W::load(p); };
        const auto add = [&](int64_t k, auto load_column) {
            decltype(load_column(w)) column[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) column[p] = load_column(w + p * next + k * kPanel);
#pragma GCC unroll 8
            for (int r = 0; r < T; ++r)
#pragma GCC unroll 8
                for (int p = 0; p < P; ++p) y[p][r] = W::add(y[p][r], column[p], x[r] + k);
        };
        int64_t k = 0;
        for (; k + kAsk <= weight.columns; k += kAsk) {
            if (T > 1) ahead.template ask<P>();  // what one row reads is fetched unasked
#pragma GCC unroll 8
            for (int i = 0; i < kAsk; i += W::kColumns) add(k + i, load);
        }
        for (; k + W::kColumns <= weight.columns; k += W::kColumns) add(k, load);
        if constexpr (W::kColumns == 2)
            if (k < weight.columns) add(k, [](const Element* p) { return W::load_one(p); });
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < T; ++r)
                if (row + r < job.rows) store(job, row + r, first + p, y[p][r]);
    }
};

// Scratch: rows that are rounded.
template <class W>
void multiply_floats(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    using Tiles = FloatTiles<W>;
    const int64_t columns = product.weight->columns;
    each_tile_of_rows(product, begin, end, [&](const Job& job, int64_t i) {
        const typename W::Input* rows[kTileRows];
        for (int r = 0; r < job.rows; ++r) {
            const float* x = reinterpret_cast<const float*>(product.x) +
                             product.row(i + r) / product.x_share * columns;
            rows[r] = W::row(x, columns, scratch + 2 * r * (columns + 1));
        }
        for (int r = job.rows; r < kTileRows; ++r) rows[r] = rows[0];
        // Enough sums at once to hide the latency of one.
        if (job.rows == 1 && kRegisters == 16) return walk_panels<Tiles, 8>(job, {rows});
        if (job.rows <= 3) return walk_panels<Tiles, 4>(job, {rows});
        walk_panels<Tiles, kRegisters == 32 ? 2 : 3>(job, {rows});
    });
}

// Products of many rows with F16 weights: a task's panels are widened to f32 first, which serves all of
// the rows. A widened weight is the same number, so an output has the same bits.

// Scratch: widened panels, then what multiply_floats() needs.
PLAIT_INLINE void multiply_widened(const Product& product, int64_t begin, int64_t end,
                                   unsigned char* scratch) {
    constexpr int kPanel = F32::kLanes;
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.panel_bytes = w.records_offset = widened_panel_bytes(packed);
    const auto widen = [&](const unsigned char* from, unsigned char* to) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        auto* whole = reinterpret_cast<float*>(to);
        for (int64_t k = 0; k < w.columns * kPanel; k += kPanel)
            F32::load_f16(half + k).store(whole + k);
    };
    multiply_made(product, w, widened_panels(packed), begin, end, scratch, widen,
                  [](const Product& widened, int64_t n, unsigned char* rest) {
                      multiply_floats<WeightF32>(widened, 0, n, rest);
                  });
}

}  // namespace plait::cpu::PLAIT_ISA
