// Products of activation rows with packed matrices. Register tiles: one panel of a block type, or
// some panels of floats, times up to kTileRows rows.
//
// Block types: a = row of quantize_rows, D and M the scale and minimum of a block's lane, o the
// offset of its codes c:
//   y += scale(a) * (D * sum((c - o) * a) + M * sum(a))         every 32 columns, in order
// with the inner sums in integers, exactly. Floats: y = fma(w, x, y), column after column.
#include "backend/cpu/kernels/product.h"

#include "backend/cpu/kernels/dot.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// One row tile against panels [begin, end).
struct Job {
    const Product* product;
    int64_t begin, end;
    int rows;    // in use; the others are computed and dropped
    bool first;  // the weights come from memory, not from a cache
    const unsigned char* x[kTileRows];
    float* y[kTileRows];
    // Quantised rows of a tile of T: [columns / 32][T][32], [columns / 32][T] and, where the format
    // needs sums, [columns / 32][units][T].
    const int8_t* codes;
    const float* scales;
    const float* sums;
};

using RunJob = void (*)(const Job&);

PLAIT_INLINE void store(const Job& job, int row, int64_t panel, F32 y) {
    const Product& p = *job.product;
    const int64_t first = panel * kLanes;
    const int64_t n = p.weight->rows - first;
    float* to = job.y[row] + first;
    const float* residual = p.residual ? p.residual + (to - p.y) : nullptr;
    if (n >= kLanes) {
        if (p.bias) y = y + F32::load(p.bias + first);
        if (residual) y = y + F32::load(residual);
        y.store(to);
    } else {
        if (p.bias) y = y + F32::load(p.bias + first, n);
        if (residual) y = y + F32::load(residual, n);
        y.store(to, n);
    }
}

// ---- Block types ----

// What AVX2 can add up in 16 bits.
constexpr int groups_of(int most, int unit) {
    for (int groups = unit / 4; groups > 1; groups /= 2)
        if (groups * most * 2 * 127 <= 32767) return groups;
    return 1;
}

template <class Block, int P, int T>
PLAIT_INLINE void block_tile(const Job& job, int64_t first) {
    using D = Dot<Block>;
    constexpr int kBytes = 4 * kLanes * Parts<Block>::kBits;  // of 32 columns
    constexpr int kUnits = 32 / D::kUnit;
    constexpr int kGroups = groups_of(D::kMost, D::kUnit);
    constexpr bool kSums = D::kOffset != 0 || D::kMinimum;
    constexpr int64_t kAhead =
        4096;  // into the second level cache: the first takes too few at once

    const PackedWeight& w = *job.product->weight;
    const uint8_t* codes = job.product->matrix + first * w.panel_bytes;
    const uint8_t* records = codes + w.records_offset;
    const int8_t* a = job.codes;
    const float* scales = job.scales;
    const float* sums = job.sums;
    const bool fetch = job.first;
    F32 y[P][T];
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();

    for (int64_t n = 0; n < w.columns; n += Block::kElements) {
        typename D::Scales s[P];
        for (int p = 0; p < P; ++p) s[p].open(records + p * w.panel_bytes);
        records += Parts<Block>::kRecord * kLanes;
        for (int b = 0; b < Block::kElements / 32; ++b) {
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                const uint8_t* c = codes + p * w.panel_bytes;
                if (fetch)
                    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(c + kAhead + i, 0, 2);
                F32 t[T];
#pragma GCC unroll 2
                for (int u = 0; u < kUnits; ++u) {
                    Sums sum[T];
#pragma GCC unroll 8
                    for (int g = 0; g < D::kUnit / 4; ++g) {
                        const int group = u * D::kUnit / 4 + g;
                        const Bytes code = D::code(c, group);
#pragma GCC unroll 8
                        for (int r = 0; r < T; ++r)
                            sum[r].template add<D::kSigned, kGroups>(
                                code, Bytes::four(a + 32 * r + 4 * group), g);
                    }
                    const F32 scale = s[p].scale(b * kUnits + u);
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        F32 x = sum[r].value();
                        if constexpr (D::kOffset != 0)
                            x = x - F32::set(sums[u * T + r]);
                        else if constexpr (kSumsBase != 0)
                            x = x - F32::set(kSumsBase);
                        t[r] = u == 0 ? scale * x : fma(scale, x, t[r]);
                        if constexpr (D::kMinimum)
                            t[r] =
                                fma(s[p].minimum(b * kUnits + u), F32::set(sums[u * T + r]), t[r]);
                    }
                }
#pragma GCC unroll 8
                for (int r = 0; r < T; ++r) y[p][r] = fma(t[r], F32::set(scales[r]), y[p][r]);
            }
            codes += kBytes;
            a += 32 * T;
            scales += T;
            if constexpr (kSums) sums += kUnits * T;
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (r < job.rows) store(job, r, first + p, y[p][r]);
}

// Panels at once. For one row memory is the limit: panel after panel is one long stream, prefetched
// far ahead, and nothing beats that (bench_linear: 35 GB/s a thread, 21 for eight streams at once).
constexpr int streams(int t) { return t == 2 && kLanes > 1 ? 2 : 1; }

template <class Block, int T>
void block_job(const Job& job) {
    constexpr int P = streams(T);
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) block_tile<Block, P, T>(job, p);
    for (; p < job.end; ++p) block_tile<Block, 1, T>(job, p);
}

// Interleaves T quantised rows in scratch; a single one stays where it is.
template <class Block, int T>
PLAIT_INLINE void arrange(Job& job, unsigned char* scratch) {
    using D = Dot<Block>;
    constexpr int kUnits = 32 / D::kUnit;
    const int64_t columns = job.product->weight->columns;
    const int64_t blocks = columns / 32;
    auto* sums = reinterpret_cast<float*>(scratch);
    auto* scales = sums + blocks * kUnits * T;
    auto* codes = reinterpret_cast<int8_t*>(scales + blocks * T);
    for (int r = 0; r < T; ++r) {
        const unsigned char* x = job.x[r];
        const auto* row_scales = reinterpret_cast<const float*>(x + columns);
        const auto* row_sums = reinterpret_cast<const int16_t*>(x + columns + columns / 8);
        if constexpr (T > 1) {
            for (int64_t b = 0; b < blocks; ++b) {
                memcpy(codes + 32 * (b * T + r), x + 32 * b, 32);
                scales[b * T + r] = row_scales[b];
            }
        }
        if constexpr (D::kOffset != 0 || D::kMinimum) {
            for (int64_t b = 0; b < blocks; ++b) {
                for (int u = 0; u < kUnits; ++u) {
                    const int sum =
                        kUnits == 2 ? row_sums[2 * b + u] : row_sums[2 * b] + row_sums[2 * b + 1];
                    sums[(b * kUnits + u) * T + r] =
                        D::kMinimum ? static_cast<float>(sum)
                                    : kSumsBase + static_cast<float>(D::kOffset * sum);
                }
            }
        }
    }
    job.sums = sums;
    job.codes = T > 1 ? codes : reinterpret_cast<const int8_t*>(job.x[0]);
    job.scales = T > 1 ? scales : reinterpret_cast<const float*>(job.x[0] + columns);
}

template <class Block, int T>
void arranged_job(Job& job, unsigned char* scratch) {
    arrange<Block, T>(job, scratch);
    block_job<Block, T>(job);
}

// ---- Floats ----

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

template <class W, int P, int T>
PLAIT_INLINE void float_tile(const Job& job, int64_t panel) {
    const PackedWeight& weight = *job.product->weight;
    using Element = typename W::Element;
    const Element* w[P];
    const float* x[T];
    F32 y[P][T];
    for (int p = 0; p < P; ++p)
        w[p] = reinterpret_cast<const Element*>(job.product->matrix +
                                                (panel + p) * weight.panel_bytes);
    for (int r = 0; r < T; ++r) x[r] = reinterpret_cast<const float*>(job.x[r]);
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r) y[p][r] = F32::zero();
    for (int64_t k = 0; k < weight.columns; ++k) {
        F32 column[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) column[p] = W::load(w[p] + k * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < T; ++r) {
            const F32 value = F32::set(x[r][k]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) y[p][r] = fma(column[p], value, y[p][r]);
        }
    }
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (r < job.rows) store(job, r, panel + p, y[p][r]);
}

// Enough sums at once to hide the latency of one.
constexpr int panels_at_once(int t) { return t <= 3 ? 4 : 2; }

template <class W, int T>
void float_job(Job& job, unsigned char*) {
    constexpr int P = panels_at_once(T);
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) float_tile<W, P, T>(job, p);
    for (; p + 2 <= job.end; p += 2) float_tile<W, 2, T>(job, p);
    for (; p < job.end; ++p) float_tile<W, 1, T>(job, p);
}

// ---- Choice of a tile ----

using TileJob = void (*)(Job&, unsigned char*);

constexpr int kMostRows = kRegisters == 32 ? 8 : 4;

struct Tiles {
    TileJob of[kMostRows + 1];  // by rows: the smallest tile that takes them
};

template <class Block>
PLAIT_INLINE constexpr Tiles block_tiles() {
    if constexpr (kMostRows == 8)
        return {{nullptr, arranged_job<Block, 1>, arranged_job<Block, 2>, arranged_job<Block, 3>,
                 arranged_job<Block, 4>, arranged_job<Block, 6>, arranged_job<Block, 6>,
                 arranged_job<Block, 8>, arranged_job<Block, 8>}};
    else
        return {{nullptr, arranged_job<Block, 1>, arranged_job<Block, 2>, arranged_job<Block, 3>,
                 arranged_job<Block, 4>}};
}

template <class W>
PLAIT_INLINE constexpr Tiles float_tiles() {
    if constexpr (kMostRows == 8)
        return {{nullptr, float_job<W, 1>, float_job<W, 2>, float_job<W, 3>, float_job<W, 4>,
                 float_job<W, 6>, float_job<W, 6>, float_job<W, 8>, float_job<W, 8>}};
    else
        return {{nullptr, float_job<W, 1>, float_job<W, 2>, float_job<W, 3>, float_job<W, 4>}};
}

const Tiles& tiles(Format format) {
    static constexpr Tiles kF32 = float_tiles<WeightF32>();
    static constexpr Tiles kF16 = float_tiles<WeightF16>();
    static constexpr Tiles kBF16 = float_tiles<WeightBF16>();
    switch (format) {
#define PLAIT_CASE(name, Block)                               \
    case Format::name: {                                      \
        static constexpr Tiles kTiles = block_tiles<Block>(); \
        return kTiles;                                        \
    }
        PLAIT_BLOCKS(PLAIT_CASE)
#undef PLAIT_CASE
    case Format::f16: return kF16;
    case Format::bf16: return kBF16;
    default: return kF32;
    }
}

}  // namespace

void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const PackedWeight& w = *product.weight;
    const Tiles& with = tiles(w.format);
    Job job{};
    job.product = &product;
    job.begin = begin;
    job.end = end;
    for (int64_t first = 0; first < product.n; first += kMostRows) {
        const int64_t left = product.n - first;
        job.first = first == 0;
        job.rows = left < kMostRows ? static_cast<int>(left) : kMostRows;
        for (int r = 0; r < kMostRows; ++r) {
            const int64_t i = first + (r < job.rows ? r : 0);
            const int64_t row = product.rows ? product.rows[i] : i * product.row_step;
            job.x[r] = product.x + row / product.x_share * w.input_bytes();
            job.y[r] = product.y + row * w.rows;
        }
        with.of[job.rows](job, scratch);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
