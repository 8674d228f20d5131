// Products of quantised rows with block types. Register tiles: P panels times T rows.
//
// a = row of quantize_rows, D and M the scale and minimum of a block's lane, o the offset of its
// codes c:
//   y += scale(a) * (D * sum((c - o) * a) + M * sum(a))         every 32 columns, in order
// with the inner sums in integers, exactly.
#pragma once

#include "backend/cpu/kernels/dot.h"
#include "backend/cpu/kernels/product_job.h"
#include "backend/cpu/kernels/quantize_rows.h"

namespace plait::cpu::PLAIT_ISA {

// n rows side by side: the b-th block of row r has its codes at 32 * (b * n + r), its scale at
// b * n + r and, where the format needs one, the sum of its u-th unit at (b * units + u) * n + r.
struct Activations {
    const int8_t* codes;
    const float* scales;
    const float* sums;
    int64_t n;

    PLAIT_INLINE_MEMBER Activations from(int row) const {
        return {codes + 32 * row, scales + row, sums + row, n};
    }
};

// What AVX2 can add up in 16 bits.
constexpr int groups_of(int most, int unit) {
    for (int groups = unit / 4; groups > 1; groups /= 2)
        if (groups * most * 2 * 127 <= 32767) return groups;
    return 1;
}

// Memory to ask for while a tile is computed: `bytes` of each of P panels every 32 columns. It goes to
// the second level cache; the first takes too few requests at once.
struct Ahead {
    const uint8_t* next;
    int64_t panel_bytes;
    int bytes;

    template <int P>
    PLAIT_INLINE_MEMBER void ask() {
        for (int i = 0; i < bytes; i += 64)
            for (int p = 0; p < P; ++p) __builtin_prefetch(next + p * panel_bytes + i, 0, 2);
        next += bytes;
    }
};

// Rows [row, row + T) of the job times panels [first, first + P); `a` starts at the first row.
template <class Block, int P, int T>
PLAIT_INLINE void block_tile(const Job& job, const Activations& activations, int row, int64_t first,
                             Ahead ahead) {
    using D = Dot<Block>;
    constexpr int kBytes = 4 * kLanes * Parts<Block>::kBits;  // of 32 columns
    constexpr int kUnits = 32 / D::kUnit;
    constexpr int kGroups = groups_of(D::kMost, D::kUnit);

    const PackedWeight& w = *job.product->weight;
    const uint8_t* codes = job.product->matrix + first * w.panel_bytes;
    const uint8_t* records = codes + w.records_offset;
    const int8_t* a = activations.codes;
    const float* scales = activations.scales;
    const float* sums = activations.sums;
    const int64_t rows = activations.n;
    F32 y[P][T];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();

    for (int64_t n = 0; n < w.columns; n += Block::kElements) {
        typename D::Scales s[P];
        for (int p = 0; p < P; ++p) s[p].open(records + p * w.panel_bytes);
        records += Parts<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            ahead.template ask<P>();
            F32 t[P][T];
#pragma GCC unroll 2
            for (int u = 0; u < kUnits; ++u) {
                Sums sum[P][T];
#pragma GCC unroll 8
                for (int g = 0; g < D::kUnit / 4; ++g) {
                    const int group = u * D::kUnit / 4 + g;
                    Bytes code[P];
#pragma GCC unroll 4
                    for (int p = 0; p < P; ++p) code[p] = D::code(codes + p * w.panel_bytes, group);
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        const Bytes four = Bytes::four(a + 32 * r + 4 * group);
#pragma GCC unroll 4
                        for (int p = 0; p < P; ++p)
                            sum[p][r].template add<D::kSigned, kGroups>(code[p], four, g);
                    }
                }
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const F32 scale = s[p].scale(b * kUnits + u);
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        F32 x = sum[p][r].value();
                        if constexpr (D::kOffset != 0)
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
            codes += kBytes;
            a += 32 * rows;
            scales += rows;
            sums += kUnits * rows;
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (row + r < job.rows) store(job, row + r, first + p, y[p][r]);
}

// Whether tiles are some panels wide, which share what is loaded of the rows, or many rows high,
// which share what is unpacked of the codes: two scales every 32 columns take too long.
template <class Block>
constexpr bool kWide = kRegisters == 32 && Dot<Block>::kUnit == 32;

// All rows of the job, tile after tile, while the panels are in the cache.
template <class Block, int P>
PLAIT_INLINE void panels_product(const Job& job, const Activations& a, int64_t first) {
    constexpr int kHigh = kRegisters == 32 && !kWide<Block> ? 8 : 4;
    constexpr int kAll =
        4 * kLanes * Parts<Block>::kBits + Parts<Block>::kRecord * kLanes * 32 / Block::kElements;
    const PackedWeight& w = *job.product->weight;
    const uint8_t* panels = job.product->matrix + first * w.panel_bytes;
    const int turns = (job.rows + kHigh - 1) / kHigh;
    int row = 0;
    for (int turn = 0; turn < turns; ++turn) {
        // One panel and one tile: all panels are one long stream, asked for some way ahead, and
        // nothing beats that (bench_linear: 35 GB/s a thread, 21 for eight streams at once). Else
        // the next P panels, each tile its share of them.
        Ahead ahead{panels + 4096, w.panel_bytes, 0};
        if (P > 1 || turns > 1)
            ahead.next = panels + P * w.panel_bytes + w.panel_bytes * turn / turns;
        if (job.first) ahead.bytes = kAll / turns;
        const int rows = (job.rows - row + turns - turn - 1) / (turns - turn);
        switch (rows) {
        case 1: block_tile<Block, P, 1>(job, a.from(row), row, first, ahead); break;
        case 2: block_tile<Block, P, 2>(job, a.from(row), row, first, ahead); break;
        case 3: block_tile<Block, P, 3>(job, a.from(row), row, first, ahead); break;
        case 4: block_tile<Block, P, 4>(job, a.from(row), row, first, ahead); break;
        case 5:
        case 6:  // a tile may be higher than the job: it reads what stands behind, and drops it
            if constexpr (kHigh == 8) block_tile<Block, P, 6>(job, a.from(row), row, first, ahead);
            break;
        default:
            if constexpr (kHigh == 8) block_tile<Block, P, 8>(job, a.from(row), row, first, ahead);
        }
        row += rows;
    }
}

template <class Block, int P>
void block_rows(const Job& job, const Activations& a) {
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) panels_product<Block, P>(job, a, p);
    if constexpr (P > 1)
        for (; p < job.end; ++p) panels_product<Block, 1>(job, a, p);
}

// to[(b * units + u) * n + r] = what a tile takes of the sums of unit u; `from` is [blocks][n][2].
template <class Block>
PLAIT_INLINE void convert_sums(const int16_t* from, int64_t blocks, int n, float* to) {
    using D = Dot<Block>;
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

// Scratch: floats of the sums, then copies of rows that do not stand side by side.
template <class Block>
PLAIT_INLINE Activations side_by_side(const Product& product, int64_t i, int n,
                                      unsigned char* scratch) {
    using D = Dot<Block>;
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
    each_tile_of_rows(product, begin, end, [&](const Job& job, int64_t i) {
        const Activations a = side_by_side<Block>(product, i, job.rows, scratch);
        constexpr int kMost = kWide<Block> ? 3 : kLanes > 1 ? 2 : 1;
        if (job.rows > 1 && (kWide<Block> || job.rows == 2))
            return block_rows<Block, kMost>(job, a);
        block_rows<Block, 1>(job, a);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
