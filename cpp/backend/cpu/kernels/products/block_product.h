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

// Starts the sums of row r at starts[r].
template <class S, int P, int T>
PLAIT_INLINE void start_sums(const float* starts, S (&sum)[P][T]) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < T; ++r) sum[p][r] = S::from(set_of<T>(starts, r));
}

// clang would load all rows of a tile first, and run out of registers.
PLAIT_INLINE void load_no_earlier() {
#if defined(__clang__) && defined(__aarch64__)
    asm volatile("" ::: "memory");
#endif
}

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
    static constexpr int kElements = Block::kElements;
    // A tile is wide or high. The panels of a wide tile share the loaded rows; the rows of a high
    // tile share the unpacked codes. High tiles are for formats with two scales per 32 columns and,
    // if there are few registers, for codes that are slow to unpack; their sums spill to memory.
    static constexpr bool kWide = D::kUnit == 32 && TileShape::kWidePanels > 1 &&
                                  (TileShape::kWideForSlowCodes || D::kIsQuick);
    static constexpr int kMaxRows = kWide ? 4 : 8;
    static constexpr int kPanels = kWide ? TileShape::kWidePanels : TileShape::kHighPanels;  // max
    static constexpr int kCodeBytes = 4 * kLanes * BlockLayout<Block>::kBits;  // of 32 columns
    static constexpr int kRecordBytes = BlockLayout<Block>::kRecord * kLanes;  // of a block
    static constexpr int kBytes = BlockLayout<Block>::kBlock * kLanes * 32 / Block::kElements;
    static constexpr int kUnits = 32 / D::kUnit;
    static constexpr int kGroups = groups_of(D::kMaxCode, D::kUnit);
    static constexpr bool kStartsAtOffset = TileShape::kStartsAtOffset && D::kOffset != 0;

    PLAIT_INLINE_MEMBER static constexpr Signs signs(int rows) {
        if (!D::kSigned) return Signs::kUnsigned;
        if (kIsUnpacked<Block>) return Signs::kSplit;
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
    const uint8_t* at = job.product->matrix + first * w.panel_bytes;
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
        for (int p = 0; p < P; ++p) s[p].open(at + p * w.panel_bytes);
        at += kRecordBytes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            prefetch.template fetch<P>();
            F32 t[P][T];
#pragma GCC unroll 2
            for (int u = 0; u < kUnits; ++u) {
                Sums sum[P][T], of_zeros[P];
                if constexpr (kStartsAtOffset) start_sums(sums + u * rows, sum);
#pragma GCC unroll 8
                for (int g = 0; g < D::kUnit / 4; ++g) {
                    const int group = u * D::kUnit / 4 + g;
                    if (T > 4 && g == 4) load_no_earlier();
                    decltype(D::code(at, 0)) code[P];
#pragma GCC unroll 4
                    for (int p = 0; p < P; ++p) {
                        code[p] = D::code(at + p * w.panel_bytes, group);
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
                        else if constexpr (kSigns == Signs::kSplit)
                            x = x - s[p].error(b * kUnits + u);
                        else if constexpr (D::kOffset != 0 && !kStartsAtOffset)
                            x = x - F32::set(sums[u * rows + r]);
                        else if constexpr (kSumsBase != 0)
                            x = x - F32::set(kSumsBase);
                        t[p][r] = u == 0 ? scale * x : fma(scale, x, t[p][r]);
                        if constexpr (D::kMinimum)
                            t[p][r] = fma(s[p].minimum(b * kUnits + u),
                                          set_of<T>(sums + u * rows, r), t[p][r]);
                    }
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < T; ++r) {
                const F32 scale = set_of<T>(scales, r);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) y[p][r] = fma(t[p][r], scale, y[p][r]);
            }
            at += kCodeBytes;
            a += 32 * rows;
            scales += rows;
            sums += kUnits * rows;
        }
    }
    store_tile(job, row, first, y);
}

// Tiles of a single row. Only these are compiled for other numbers of panels than Tiles::kPanels.
template <class Tiles>
struct SingleRow : Tiles {
    static constexpr int kMaxRows = 1;
    static constexpr bool kCodesAreBytes = Tiles::kCodeBytes == 32 * kLanes;

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const typename Tiles::Rows& rows,
                                         int row, int64_t first, PanelPrefetch prefetch) {
        // Some processors read a stream ahead faster than prefetches do, and several streams of bytes
        // if each is longer than a page (docs/decisions/0055 and 0057).
        const PackedWeight& w = *job.product->weight;
        if (w.are_streams_read_ahead && job.groups == 1 &&
            (P == 1 || (kCodesAreBytes && w.panel_bytes > kPageBytes)))
            prefetch.bytes = 0;
        Tiles::template tile<P, T>(job, rows, row, first, prefetch);
    }
};

// to[(b * units + u) * n + r] = the sum of unit u in the form that a tile uses; `from` is
// [blocks][n][2].
template <class Block>
PLAIT_INLINE void convert_sums(const int16_t* from, int64_t blocks, int n, float* to) {
    using D = BlockDot<Block>;
    const auto converted = [](int sum) {
        if (D::kMinimum) return static_cast<float>(sum);
        return kSumsBase + static_cast<float>(TileShape::kStartsAtOffset ? -D::kOffset * sum
                                                                         : D::kOffset * sum);
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

// ---- Matrices of two rows by two lanes, for instruction sets whose lane_bytes is 8. A register of a
// panel has eight bytes of two lanes, a register of activations eight bytes of two rows. ----

// Rows in pairs. Floats are stored twice, as a register of results needs them: those of a pair of
// rows a and b as a, a, b, b.
struct PairedRows {
    const int8_t* codes;  // [blocks of 32 columns][pairs][4][2 rows][8]
    const float* scales;  // [blocks][pairs][4]
    const float* sums;    // [blocks][units][pairs][4]
    int64_t pairs;

    PLAIT_INLINE_MEMBER PairedRows from(int) const { return *this; }
};

// Returns rows of Activations (block_product.h) in pairs. The last of an odd number of rows is its
// own partner. Takes up to 14 bytes of scratch per column.
template <class Rows, class Matrix = ByteMatrix>
PLAIT_INLINE PairedRows paired(const Rows& a, int64_t blocks, int units, bool has_sums,
                               unsigned char* scratch) {
    const int64_t pairs = (a.n + 1) / 2;
    auto* codes = reinterpret_cast<int8_t*>(scratch);
    auto* scales = reinterpret_cast<float*>(scratch + blocks * pairs * 64);
    float* sums = scales + blocks * pairs * 4;
    const auto put_twice = [&](const float* from, int64_t pair, float* to) {
        const float first = from[2 * pair], second = from[2 * pair + (2 * pair + 1 < a.n)];
        to[0] = to[1] = first;
        to[2] = to[3] = second;
    };
    for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t pair = 0; pair < pairs; ++pair) {
            const int8_t* first = a.codes + 32 * (b * a.n + 2 * pair);
            const int8_t* second = first + (2 * pair + 1 < a.n ? 32 : 0);
            int8_t* to = codes + 64 * (b * pairs + pair);
            for (int i = 0; i < 32; i += 16) Matrix::interleave(first + i, second + i, to + 2 * i);
            put_twice(a.scales + b * a.n, pair, scales + 4 * (b * pairs + pair));
            for (int64_t u = b * units; has_sums && u < (b + 1) * units; ++u)
                put_twice(a.sums + u * a.n, pair, sums + 4 * (u * pairs + pair));
        }
    }
    return {codes, scales, sums, pairs};
}

// Register tiles of a block type. Tiles is BlockTiles<Block>, whose result has the same bits.
template <class Tiles, int kRows, class Matrix = ByteMatrix>
struct PairTiles {
    using D = typename Tiles::D;
    using Rows = PairedRows;
    static constexpr int kMaxRows = kRows;
    static constexpr int kBytes = Tiles::kBytes;

    // Starts the sums of pair r at the four numbers from starts + 4 * r.
    template <int P, int kPairs>
    PLAIT_INLINE_MEMBER static void start_sums(const float* starts, Matrix (&sum)[P][kPairs][2]) {
#pragma GCC unroll 4
        for (int r = 0; r < kPairs; ++r)
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p)
                for (int q = 0; q < 2; ++q) sum[p][r][q] = Matrix::from(F32::load(starts + 4 * r));
    }

    // Adds the sums of a unit, times its scale, and its minima to t, or sets t if it is the first.
    template <int kPairs>
    PLAIT_INLINE_MEMBER static void add_unit(const Matrix (&sum)[kPairs][2], F32 scale, F32 minimum,
                                             const float* sums, bool is_first,
                                             F32 (&t)[kPairs][2]) {
#pragma GCC unroll 2
        for (int q = 0; q < 2; ++q) {
            const F32 lanes = Matrix::lanes(scale, q), minima = Matrix::lanes(minimum, q);
#pragma GCC unroll 4
            for (int r = 0; r < kPairs; ++r) {
                const F32 x = sum[r][q].value() - F32::set(kSumsBase);
                t[r][q] = is_first ? lanes * x : fma(lanes, x, t[r][q]);
                if constexpr (D::kMinimum) t[r][q] = fma(minima, F32::load(sums + 4 * r), t[r][q]);
            }
        }
    }

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const PairedRows& rows, int row,
                                         int64_t first, const PanelPrefetch&) {
        constexpr int kPairs = (T + 1) / 2, kUnits = Tiles::kUnits, kSteps = D::kUnit / 8;
        const PackedWeight& w = *job.product->weight;
        const uint8_t* at = job.product->matrix + first * w.panel_bytes;
        const int8_t* a = rows.codes;
        const float *scales = rows.scales, *sums = rows.sums;
        const int64_t pairs = rows.pairs;
        // The same columns of the panels that come next.
        const int64_t ahead = w.panel_bytes * P;
        F32 y[P][kPairs][2];
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < kPairs; ++r) y[p][r][0] = y[p][r][1] = F32::zero();

        for (int64_t n = 0; n < w.columns; n += Tiles::kElements) {
            typename D::Scales s[P];
            for (int p = 0; p < P; ++p) s[p].open(at + p * w.panel_bytes);
            at += Tiles::kRecordBytes;
            for (int b = 0; b < Tiles::kElements / 32; ++b) {
                for (int p = 0; p < P; ++p)
                    for (int i = 0; i < kBytes; i += 64)
                        __builtin_prefetch(at + ahead + p * w.panel_bytes + i, 0, 2);
                F32 t[P][kPairs][2];
#pragma GCC unroll 2
                for (int u = 0; u < kUnits; ++u) {
                    Matrix sum[P][kPairs][2];
                    if constexpr (Tiles::kStartsAtOffset) start_sums(sums + 4 * u * pairs, sum);
#pragma GCC unroll 4
                    for (int i = 0; i < kSteps; ++i) {
                        const int step = u * kSteps + i;
                        Bytes code[P][2];
#pragma GCC unroll 2
                        for (int p = 0; p < P; ++p)
                            for (int q = 0; q < 2; ++q)
                                code[p][q] = D::code(at + p * w.panel_bytes, 2 * step + q);
#pragma GCC unroll 4
                        for (int r = 0; r < kPairs; ++r) {
                            const Bytes two = Bytes::load(
                                reinterpret_cast<const uint8_t*>(a + 64 * r + 16 * step));
#pragma GCC unroll 2
                            for (int p = 0; p < P; ++p)
                                for (int q = 0; q < 2; ++q) sum[p][r][q].add(code[p][q], two);
                        }
                    }
#pragma GCC unroll 2
                    for (int p = 0; p < P; ++p) {
                        const int unit = b * kUnits + u;
                        F32 minimum = F32::zero();
                        if constexpr (D::kMinimum) minimum = s[p].minimum(unit);
                        add_unit<kPairs>(sum[p], s[p].scale(unit), minimum, sums + 4 * u * pairs,
                                         u == 0, t[p]);
                    }
                }
#pragma GCC unroll 4
                for (int r = 0; r < kPairs; ++r) {
                    const F32 scale = F32::load(scales + 4 * r);
#pragma GCC unroll 2
                    for (int p = 0; p < P; ++p)
                        for (int q = 0; q < 2; ++q) y[p][r][q] = fma(t[p][r][q], scale, y[p][r][q]);
                }
                at += Tiles::kCodeBytes;
                a += 64 * pairs;
                scales += 4 * pairs;
                sums += 4 * kUnits * pairs;
            }
        }
        F32 of_rows[P][T];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int r = 0; r < T; ++r)
                of_rows[p][r] = Matrix::row(y[p][r / 2][0], y[p][r / 2][1], r % 2);
        store_tile(job, row, first, of_rows);
    }
};

// Tiles of one row, which is read as it lies in memory (Activations of block_product.h).
template <class Tiles, class Matrix = ByteMatrix>
struct OneRowTiles {
    using D = typename Tiles::D;
    using Rows = typename Tiles::Rows;
    static constexpr int kMaxRows = 1;
    static constexpr int kBytes = Tiles::kBytes;

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const Rows& x, int row, int64_t first,
                                         const PanelPrefetch&) {
        constexpr int kAhead = 2048;  // bytes of each panel
        constexpr int kUnits = Tiles::kUnits, kSteps = D::kUnit / 8;
        const PackedWeight& w = *job.product->weight;
        const uint8_t* at = job.product->matrix + first * w.panel_bytes;
        const int8_t* a = x.codes;
        const float *scales = x.scales, *sums = x.sums;
        F32 y[P];
        for (int p = 0; p < P; ++p) y[p] = F32::zero();

        for (int64_t n = 0; n < w.columns; n += Tiles::kElements) {
            typename D::Scales s[P];
            for (int p = 0; p < P; ++p) s[p].open(at + p * w.panel_bytes);
            at += Tiles::kRecordBytes;
            for (int b = 0; b < Tiles::kElements / 32; ++b) {
                for (int p = 0; p < P; ++p)
                    for (int i = 0; i < kBytes; i += 64)
                        __builtin_prefetch(at + kAhead + p * w.panel_bytes + i, 0, 2);
                F32 t[P];
#pragma GCC unroll 2
                for (int u = 0; u < kUnits; ++u) {
                    typename Matrix::OneRow sum[P][2];
                    if constexpr (Tiles::kStartsAtOffset)
                        for (int p = 0; p < P; ++p)
                            for (int q = 0; q < 2; ++q) sum[p][q] = Matrix::OneRow::from(sums[u]);
#pragma GCC unroll 4
                    for (int i = 0; i < kSteps; ++i) {
                        const int step = u * kSteps + i;
                        const Bytes eight = Matrix::columns(a + step / 2 * 16, step % 2);
#pragma GCC unroll 2
                        for (int p = 0; p < P; ++p)
                            for (int q = 0; q < 2; ++q)
                                sum[p][q].add(D::code(at + p * w.panel_bytes, 2 * step + q), eight);
                    }
#pragma GCC unroll 2
                    for (int p = 0; p < P; ++p) {
                        const F32 scale = s[p].scale(b * kUnits + u);
                        const F32 of_unit = Matrix::OneRow::value(sum[p]) - F32::set(kSumsBase);
                        t[p] = u == 0 ? scale * of_unit : fma(scale, of_unit, t[p]);
                        if constexpr (D::kMinimum)
                            t[p] = fma(s[p].minimum(b * kUnits + u), F32::set(sums[u]), t[p]);
                    }
                }
                for (int p = 0; p < P; ++p) y[p] = fma(t[p], F32::set(*scales), y[p]);
                at += Tiles::kCodeBytes;
                a += 32;
                ++scales;
                sums += kUnits;
            }
        }
        for (int p = 0; p < P; ++p) store(job, row, first + p, y[p]);
    }
};

// The product of a group of up to kMaxTileRows rows. Scratch: see paired().
template <class Tiles>
PLAIT_INLINE void multiply_pairs(const TileJob& job, const typename Tiles::Rows& a,
                                 unsigned char* scratch) {
    using D = typename Tiles::D;
    // Two panels share the loaded rows; a tile of eight rows shares the unpacked codes.
    if (job.rows == 1) return walk_panels<OneRowTiles<Tiles>, 2>(job, a);
    const PairedRows rows = paired(a, job.product->weight->columns / 32, Tiles::kUnits,
                                   D::kOffset != 0 || D::kMinimum, scratch);
    if (job.rows <= 4) return walk_panels<PairTiles<Tiles, 4>, 2>(job, rows);
    walk_panels<PairTiles<Tiles, 8>, 1>(job, rows);
}

// ---- Products of many rows: the panels of a task are unpacked once for all of its rows, if that is
// faster with the instruction set. Signed codes are split into magnitudes and signs
// (Signs::kSplit). ----

// Unpacks a panel.
template <class Block>
void unpack_panel(const unsigned char* panel, const PackedWeight& w, unsigned char* to) {
    using D = BlockDot<Block>;
    using To = UnpackedBlock<D>;
    constexpr int kBytes = BlockLayout<To>::kBits / 2 * kLanes;  // of the codes of four columns
    for (int64_t k = 0; k < w.columns; k += Block::kElements) {
        typename D::Scales s;
        s.open(panel);
        panel += BlockLayout<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
            auto* floats = reinterpret_cast<float*>(to);
            const auto put = [&](F32 x) {
                x.store(floats);
                floats += kLanes;
            };
            to += BlockLayout<To>::kRecord * kLanes;
            Sums error;
#pragma GCC unroll 8
            for (int g = 0; g < 8; ++g) {
                const auto code = BlockDot<To>::Code::of(D::code(panel, g));
                code.store(to);
                if constexpr (D::kSigned)
                    error.template add<Signs::kSplit, 8>(code, Bytes::set(0), g);
                to += kBytes;
            }
            for (int u = b * 32 / D::kUnit; u < (b + 1) * 32 / D::kUnit; ++u) {
                put(s.scale(u));
                if constexpr (D::kMinimum) put(s.minimum(u));
                if constexpr (D::kSigned) put(error.value());
            }
            panel += 4 * kLanes * BlockLayout<Block>::kBits;
        }
    }
}

// Multiplies panels in the form of the unpacked type To. convert(from, to) writes one. Scratch:
// kMaxBlockPanels converted panels, or up to kMaxTaskBytes of them, then that of multiply_blocks().
template <class To, class Convert>
PLAIT_INLINE void multiply_as(const Product& product, int64_t begin, int64_t end,
                              unsigned char* scratch, Convert convert) {
    PackedWeight w = *product.weight;
    w.panel_bytes = w.columns / 32 * BlockTiles<To>::kBytes;
    // Enough for the widest tile, also if they do not stay in the second level cache: the rows are
    // read once for all of them.
    const int64_t max_panels = larger(kMaxTaskBytes / w.panel_bytes, kMaxBlockPanels);
    multiply_converted(product, w, max_panels, begin, end, scratch, convert,
                       [](const Product& converted, int64_t n, unsigned char* rest) {
                           multiply_blocks<To>(converted, 0, n, rest);
                       });
}

template <class Block>
void multiply_blocks(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    if constexpr (kRow.unpacks_panels && !kIsUnpacked<Block>)
        if (unpacks(*product.weight, product.n))
            return multiply_as<UnpackedBlock<BlockDot<Block>>>(
                product, begin, end, scratch, [&](const unsigned char* from, unsigned char* to) {
                    unpack_panel<Block>(from, *product.weight, to);
                });
    for_each_row_group(product, begin, end, [&](const TileJob& job, int64_t i) {
        const Activations a = interleaved<Block>(product, i, job.rows, scratch);
        using Tiles = BlockTiles<Block>;
        if constexpr (kInPairs)
            return multiply_pairs<Tiles>(job, a, scratch + paired_scratch(product.weight->columns));
        if (job.rows == 1) {
            if (TileShape::kReadsPanelsInTurn && product.weight->are_streams_read_ahead)
                return walk_panels<SingleRow<Tiles>, 1>(job, a);
            return walk_panels<SingleRow<Tiles>, TileShape::kBlockPanelsOfOneRow>(job, a);
        }
        if (Tiles::kWide || job.rows == 2) return walk_panels<Tiles, Tiles::kPanels>(job, a);
        walk_panels<Tiles, 1>(job, a);
    });
}

}  // namespace plait::cpu::PLAIT_ISA
