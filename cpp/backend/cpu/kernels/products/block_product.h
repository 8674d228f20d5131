// Products of quantised rows with block types, in register tiles of P panels by T rows.
//
// For a quantised row a and a block's lane with codes c, their offset o, scale D and minimum M:
//   y += scale(a) * (D * sum((c - o) * a) + M * sum(a))         for every 32 columns, in order
// The inner sums are integers, so they are exact.
#pragma once

#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/products/block_dot.h"
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::PLAIT_ISA {

// n interleaved rows: block b of row r has its codes at 32 * (b * n + r), its scale at b * n + r
// and, if the format needs it, the sum of its unit u at (b * units + u) * n + r.
struct Activations {
    const int8_t* codes;
    const float* scales;
    const float* sums;
    int64_t n;

    PLAIT_INLINE_MEMBER Activations from(int row) const {
        return {codes + 32 * row, scales + row, sums + row, n};
    }
};

// The number of successive dot products of four bytes whose sum fits 16 bits, for AVX2.
constexpr int groups_of(int max_code, int unit) {
    for (int groups = unit / 4; groups > 1; groups /= 2)
        if (groups * max_code * 2 * 127 <= 32767) return groups;
    return 1;
}

template <class Block>
struct BlockTiles {
    using D = BlockDot<Block>;
    using Rows = Activations;
    // A tile is wide or high. The panels of a wide tile share the loaded rows; the rows of a high
    // tile share the unpacked codes. High tiles are for formats with two scales per 32 columns and,
    // if there are few registers, for codes that are slow to unpack; their sums spill to memory.
    static constexpr bool kWide = D::kUnit == 32 && (TileShape::kWideForSlowCodes || D::kIsQuick);
    static constexpr int kMaxRows = kWide ? 4 : 8;
    static constexpr int kPanels = kWide ? TileShape::kWidePanels : TileShape::kHighPanels;  // max
    static constexpr int kCodeBytes = 4 * kLanes * BlockLayout<Block>::kBits;  // of 32 columns
    static constexpr int kRecordBytes = BlockLayout<Block>::kRecord * kLanes;  // of a block
    static constexpr int kBytes = kCodeBytes + kRecordBytes * 32 / Block::kElements;
    static constexpr int kUnits = 32 / D::kUnit;
    static constexpr int kGroups = groups_of(D::kMaxCode, D::kUnit);

    PLAIT_INLINE_MEMBER static constexpr Signs signs(int rows) {
        if (!D::kSigned) return Signs::kUnsigned;
        return rows >= kMinRowsForInverted ? Signs::kInverted : Signs::kOnFactor;
    }

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const Activations& activations,
                                         int row, int64_t first, PanelPrefetch prefetch);
};

template <class Block>
template <int P, int T>
PLAIT_INLINE_MEMBER void BlockTiles<Block>::tile(const TileJob& job, const Activations& activations,
                                                 int row, int64_t first, PanelPrefetch prefetch) {
    const PackedWeight& w = *job.product->weight;
    const uint8_t* codes = job.product->matrix + first * w.panel_bytes;
    const uint8_t* records = codes + w.records_offset;
    const int8_t* a = activations.codes;
    const float* scales = activations.scales;
    const float* sums = activations.sums;
    const int64_t rows = activations.n;
    constexpr Signs kSigns = signs(T);
    F32 y[P][T];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();

    for (int64_t n = 0; n < w.columns; n += Block::kElements) {
        typename D::Scales s[P];
        for (int p = 0; p < P; ++p) s[p].open(records + p * w.panel_bytes);
        prefetch.template fetch_records<P>(records, kRecordBytes);
        records += kRecordBytes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            prefetch.template fetch<P>();
            F32 t[P][T];
#pragma GCC unroll 2
            for (int u = 0; u < kUnits; ++u) {
                Sums sum[P][T], of_zeros[P];
#pragma GCC unroll 8
                for (int g = 0; g < D::kUnit / 4; ++g) {
                    const int group = u * D::kUnit / 4 + g;
                    Bytes code[P];
#pragma GCC unroll 4
                    for (int p = 0; p < P; ++p) {
                        code[p] = D::code(codes + p * w.panel_bytes, group);
                        if constexpr (kSigns == Signs::kInverted)
                            of_zeros[p].template add<kSigns, D::kUnit / 4>(code[p], Bytes::set(0),
                                                                           g);
                    }
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        const Bytes four = Bytes::four(a + 32 * r, group);
#pragma GCC unroll 4
                        for (int p = 0; p < P; ++p)
                            sum[p][r].template add<kSigns, kGroups>(code[p], four, g);
                    }
                }
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const F32 scale = s[p].scale(b * kUnits + u);
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        F32 x = sum[p][r].value();
                        if constexpr (kSigns == Signs::kInverted)
                            x = x - of_zeros[p].value();
                        else if constexpr (D::kOffset != 0)
                            x = x - F32::set(sums[u * rows + r]);
                        else if constexpr (kSumsBase != 0)
                            x = x - F32::set(kSumsBase);
                        t[p][r] = u == 0 ? scale * x : fma(scale, x, t[p][r]);
                        if constexpr (D::kMinimum)
                            t[p][r] = fma(s[p].minimum(b * kUnits + u),
                                          F32::set(sums[u * rows + r]), t[p][r]);
                    }
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < T; ++r) {
                const F32 scale = F32::set(scales[r]);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) y[p][r] = fma(t[p][r], scale, y[p][r]);
            }
            codes += kCodeBytes;
            a += 32 * rows;
            scales += rows;
            sums += kUnits * rows;
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (row + r < job.rows) store(job, row + r, first + p, y[p][r]);
}

// to[(b * units + u) * n + r] = the sum of unit u in the form that a tile uses; `from` is
// [blocks][n][2].
template <class Block>
PLAIT_INLINE void convert_sums(const int16_t* from, int64_t blocks, int n, float* to) {
    using D = BlockDot<Block>;
    const auto converted = [](int sum) {
        return D::kMinimum ? static_cast<float>(sum)
                           : kSumsBase + static_cast<float>(D::kOffset * sum);
    };
    if constexpr (D::kUnit == 32) {
        for (int64_t i = 0; i < blocks * n; ++i) to[i] = converted(from[2 * i] + from[2 * i + 1]);
    } else {
        for (int64_t b = 0; b < blocks; ++b)
            for (int u = 0; u < 2; ++u)
                for (int r = 0; r < n; ++r)
                    to[(2 * b + u) * n + r] = converted(from[2 * (b * n + r) + u]);
    }
}

// Returns n rows, from row i of the product on, interleaved. Scratch: the sums as floats, then
// copies of the rows unless they are already interleaved in memory.
template <class Block>
PLAIT_INLINE Activations interleaved(const Product& product, int64_t i, int n,
                                     unsigned char* scratch) {
    using D = BlockDot<Block>;
    const int64_t columns = product.weight->columns, blocks = columns / 32;
    // Rows of quantize_rows are only read.
    auto* x = const_cast<unsigned char*>(product.x);
    const auto row = [&](int r) {
        return quantized_row(x, product.x_rows, columns, product.row(i + r) / product.x_share);
    };
    auto* sums = reinterpret_cast<float*>(scratch);
    QuantizedRow all = row(0);
    if (!product.in_place()) {
        unsigned char* copies = scratch + 4 * blocks * (32 / D::kUnit) * n;
        all = quantized_row(copies, n, columns, 0);
        for (int r = 0; r < n; ++r) {
            const QuantizedRow from = row(r), to = quantized_row(copies, n, columns, r);
            for (int64_t b = 0; b < blocks; ++b) {
                memcpy(to.block_codes(b), from.block_codes(b), 32);
                *to.block_scale(b) = *from.block_scale(b);
                memcpy(to.block_sums(b), from.block_sums(b), 4);
            }
        }
    }
    if constexpr (D::kOffset != 0 || D::kMinimum) convert_sums<Block>(all.sums, blocks, n, sums);
    return {all.codes, all.scales, sums, n};
}

template <class Block>
void multiply_blocks(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    for_each_row_group(product, begin, end, [&](const TileJob& job, int64_t i) {
        const Activations a = interleaved<Block>(product, i, job.rows, scratch);
        using Tiles = BlockTiles<Block>;
        if (job.rows > 1 && (Tiles::kWide || job.rows == 2))
            return walk_panels<Tiles, Tiles::kPanels>(job, a);
        walk_panels<Tiles, 1>(job, a);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
