// Products with F16 and BF16 weights on AMX, for any number of rows. Both factors become BF16 and
// are multiplied in tiles of 16 rows by 16 outputs. docs/decisions/0051 has the reasons and
// measurements.
//
// An output y starts at zero. A tile adds 32 columns to it, where x and w are BF16:
//   y += (sum of x[k] w[k] over even k) + (sum over odd k)      each sum by fma, in order
// Denormals count as zero. This order does not depend on the number of rows, so a row has the same
// bits alone and in a batch. Reference: tests/cpp/backend/cpu/products/float_tiles_test.cpp.
//
// Rows are read as round_rows writes them. BF16 weights are multiplied by x rounded to BF16. An F16
// weight is the sum of two BF16 numbers, high and low, and x is rounded to two. For every 32
// columns, the products high by high, low x by high w and high x by low w are added, in this order.
#include "backend/cpu/amx/amx.h"
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::amx {
namespace {

constexpr int kLanes = F32::kLanes;
constexpr int kHigh = kTileRows;      // rows of a tile
constexpr int kDeep = 32;             // columns of a tile
constexpr int kTile = kHigh * kDeep;  // elements of a tile, of rows as of weights
constexpr int kRowBytes = 64;         // of every tile
constexpr int kSums = kHigh * kLanes;

constexpr int kMaxWide = 4;          // panels that are multiplied together
constexpr int kPartColumns = 256;    // columns that are unpacked together
constexpr int64_t kPassRows = 512;   // max rows for which a panel is unpacked once
constexpr int64_t kPassPanels = 16;  // max panels of that many rows whose results fit the scratch
constexpr int64_t kMinPassRows = 256;
// Tasks that a matrix is cut into: more of them would read the rows too often.
constexpr int64_t kMinFloatTasks = 12, kFloatTasksPerThread = 2;
constexpr int64_t kStripColumns = 512;  // columns of that many rows that are read again and again

constexpr int64_t kPanelPart = int64_t{kPartColumns} * kLanes;  // elements of an unpacked panel

constexpr int64_t tiles_of(int64_t rows) { return (rows + kHigh - 1) / kHigh; }
constexpr int64_t steps_of(int64_t columns) { return (columns + kDeep - 1) / kDeep; }

// The scratch of a thread. Fewer rows leave room for more columns and panels.
struct FloatScratch {
    static constexpr int64_t kX = kPassRows * kStripColumns, kY = kPassRows * kPassPanels * kLanes;
    alignas(64) uint16_t x[kX];                                    // [parts][tiles][steps][16][32]
    alignas(64) uint16_t w[kMaxWide * kPartColumns * 2 * kLanes];  // [parts][panels][steps][16][32]
    alignas(64) float y[kY];                                       // [panels][tiles][16][lanes]
};

// Two columns of 16 lanes each, side by side by lane.
PLAIT_INLINE __m512i side_by_side(__m512i low, __m512i high) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(low, 16), high,
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000)), 0xf8);
}

// A weight type: load() reads a column of a panel, split() returns the kParts BF16 numbers whose sum
// it is. As many make up x.
struct WeightBf16 {
    static constexpr int kParts = 1;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* column) { return F32::load_bf16(column); }
    PLAIT_INLINE_MEMBER static void split(F32 w, F32 (&to)[kParts]) { to[0] = w; }
};
struct WeightF16 {
    static constexpr int kParts = 2;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* column) { return F32::load_f16(column); }
    // The upper 8 bits, rounded, and the rest, which is exact.
    PLAIT_INLINE_MEMBER static void split(F32 w, F32 (&to)[kParts]) {
        const __m512i rounded =
            _mm512_add_epi32(_mm512_castps_si512(w.v), _mm512_set1_epi32(0x8000));
        to[0] = {_mm512_castsi512_ps(
            _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
        to[1] = w - to[0];
    }
};

// Writes two columns of a panel, or one and zeros, as a row of each part's tile. The parts are
// `part_step` elements apart.
template <class W>
PLAIT_INLINE void put_pair(const uint16_t* column, bool is_last, uint16_t* to, int64_t part_step) {
    F32 first[W::kParts], second[W::kParts];
    W::split(W::load(column), first);
    W::split(is_last ? F32::zero() : W::load(column + kLanes), second);
    for (int part = 0; part < W::kParts; ++part)
        _mm512_store_si512(
            to + part * part_step,
            side_by_side(_mm512_castps_si512(first[part].v), _mm512_castps_si512(second[part].v)));
}

// A tile of rows and columns of x.
struct RowTile {
    const uint16_t* x;  // [parts][steps][16][32]; with one tile of fewer rows, [16] is their number
    int64_t part_step;
};

// Some columns of some rows of x. Whole tiles are read where they are.
struct Strip {
    const Product& product;
    FloatScratch& scratch;
    int64_t row, rows;
    int64_t column, columns;
    int parts;

    int64_t tiles() const { return tiles_of(rows); }
    int64_t steps() const { return steps_of(columns); }
    bool is_in_place(int64_t tile) const {
        const int64_t first = product.first + row + tile * kHigh;
        return product.in_place() && first % kHigh == 0 && product.x_rows - first >= kHigh;
    }
    RoundedRow rounded(int64_t i) const {
        auto* x = const_cast<unsigned char*>(product.x);  // only read
        RoundedRow from = rounded_row(x, product.x_rows, product.weight->columns, parts,
                                      product.row(row + i) / product.x_share);
        from.columns += column / kDeep * from.step;
        return from;
    }
    RowTile tile(int64_t i) const {
        if (is_in_place(i)) {
            const RoundedRow first = rounded(i * kHigh);
            return {first.columns, first.part_step};
        }
        return {scratch.x + i * parts * steps() * kTile, steps() * kTile};
    }
};

// Copies the rows of tiles that are not in place. Missing rows keep what they had: nothing reads
// their results.
void copy_rows(const Strip& s) {
    for (int64_t i = 0; i < s.rows; ++i) {
        if (s.is_in_place(i / kHigh)) continue;
        const RoundedRow from = s.rounded(i);
        const RowTile tile = s.tile(i / kHigh);
        auto* const row = const_cast<uint16_t*>(tile.x) + i % kHigh * kDeep;  // in the scratch
        for (int part = 0; part < s.parts; ++part)
            for (int64_t k = 0; k < s.steps(); ++k)
                memcpy(row + part * tile.part_step + k * kTile,
                       from.columns + part * from.part_step + k * from.step, kRowBytes);
    }
}

// Unpacks columns of `wide` panels, the first of which begin at `from`, into tiles at `to`. Panels
// take turns, since several streams are read faster than one. Prefetches what is unpacked next, which
// lies `ahead` elements further on.
template <class W>
void unpack(const uint16_t* from, int64_t panel, int wide, int64_t columns, int64_t ahead,
            uint16_t* to, int64_t part_step) {
    for (int64_t k = 0; k < steps_of(columns) * kDeep; k += 2, from += 2 * kLanes, to += kDeep) {
        for (int i = 0; i < wide; ++i) {
            const uint16_t* pair = from + i * panel;
            uint16_t* const tile = to + i * kPanelPart;
            if (k < columns) {
                __builtin_prefetch(pair + ahead, 0, 2);
                put_pair<W>(pair, k + 1 == columns, tile, part_step);
            } else {
                for (int part = 0; part < W::kParts; ++part)
                    _mm512_store_si512(tile + part * part_step, _mm512_setzero_si512());
            }
        }
    }
}

// Registers 0 to 3 hold sums, of up to two tiles of rows by up to four panels. 4 and 5 hold rows, 6
// and 7 weights.
template <int kTall, int kWide, class Visit>
PLAIT_INLINE void for_each_sum(float* y, int64_t panel_step, Visit visit) {
    visit.template operator()<0>(y);
    if constexpr (kTall == 2) {
        visit.template operator()<1>(y + kSums);
        if constexpr (kWide == 1) return;
        visit.template operator()<2>(y + panel_step);
        visit.template operator()<3>(y + panel_step + kSums);
    } else {
        if constexpr (kWide > 1) visit.template operator()<1>(y + panel_step);
        if constexpr (kWide > 2) visit.template operator()<2>(y + 2 * panel_step);
        if constexpr (kWide > 3) visit.template operator()<3>(y + 3 * panel_step);
    }
}
inline void clear_sums() {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
}

// Adds the products of a tile of rows with a tile of each panel.
template <int kTall, int kWide>
PLAIT_INLINE void add_step(const uint16_t* const (&x)[2], int64_t at, const uint16_t* w) {
    load_tile<4>(x[0] + at, kRowBytes);
    load_tile<6>(w, kRowBytes);
    add_bf16_product<0, 4, 6>();
    if constexpr (kTall == 2) {
        load_tile<5>(x[1] + at, kRowBytes);
        add_bf16_product<1, 5, 6>();
        if constexpr (kWide == 1) return;
        load_tile<7>(w + kPanelPart, kRowBytes);
        add_bf16_product<2, 4, 7>();
        add_bf16_product<3, 5, 7>();
    } else {
        if constexpr (kWide > 1) {
            load_tile<7>(w + kPanelPart, kRowBytes);
            add_bf16_product<1, 4, 7>();
        }
        if constexpr (kWide > 2) {
            load_tile<6>(w + 2 * kPanelPart, kRowBytes);
            add_bf16_product<2, 4, 6>();
        }
        if constexpr (kWide > 3) {
            load_tile<7>(w + 3 * kPanelPart, kRowBytes);
            add_bf16_product<3, 4, 7>();
        }
    }
}

// A part of the columns of up to kMaxWide panels, unpacked as tiles.
struct Part {
    const Strip& strip;
    int64_t first;  // step of the strip
    int64_t steps;
    int64_t part_step;  // elements of all panels; those of a panel are kPanelPart
    bool is_first;      // of the product: sums start at zero

    const uint16_t* w(int part) const { return strip.scratch.w + part * part_step; }
};

// Multiplies the rows of kTall tiles.
template <class W, int kTall, int kWide>
void multiply_rows(const Part& part, int64_t tile, float* y) {
    const Strip& s = part.strip;
    const int64_t panel_step = s.tiles() * kSums;
    y += tile * kSums;
    if (part.is_first)
        clear_sums();
    else
        for_each_sum<kTall, kWide>(y, panel_step,
                                   []<int kSum>(float* at) { load_tile<kSum>(at, kRowBytes); });
    const RowTile rows[2] = {s.tile(tile), s.tile(tile + kTall - 1)};
    const uint16_t* high[2] = {rows[0].x, rows[1].x};
    const uint16_t* low[2] = {rows[0].x + rows[0].part_step, rows[1].x + rows[1].part_step};
    // The tiles that follow are fetched into the second level cache.
    const int64_t last = s.tiles() - 1;
    const uint16_t* next[2] = {s.tile(tile + kTall < last ? tile + kTall : last).x,
                               s.tile(tile + kTall + 1 < last ? tile + kTall + 1 : last).x};
    const uint16_t* w = part.w(0);
    for (int64_t k = part.first; k < part.first + part.steps; ++k, w += kTile) {
        if constexpr (kTall == 2)
            for (int i = 0; i < kTile; i += kDeep)
                for (const uint16_t* x : next) __builtin_prefetch(x + k * kTile + i, 0, 2);
        add_step<kTall, kWide>(high, k * kTile, w);
        if constexpr (W::kParts == 2) {
            add_step<kTall, kWide>(low, k * kTile, w);
            add_step<kTall, kWide>(high, k * kTile, w + part.part_step);
        }
    }
    for_each_sum<kTall, kWide>(y, panel_step,
                               []<int kSum>(float* at) { store_tile<kSum>(at, kRowBytes); });
}

template <class W, int kWide>
void multiply_part(const Part& part, float* y) {
    const int64_t tiles = part.strip.tiles();
    int64_t tile = 0;
    if constexpr (kWide <= 2)
        for (; tile + 2 <= tiles; tile += 2) multiply_rows<W, 2, kWide>(part, tile, y);
    for (; tile < tiles; ++tile) multiply_rows<W, 1, kWide>(part, tile, y);
}

// Multiplies the strip by `wide` panels from p on, and adds the results to y.
template <class W>
void multiply_panels(const Strip& s, int64_t p, int wide, float* y) {
    const PackedWeight& w = *s.product.weight;
    const auto* panels = reinterpret_cast<const uint16_t*>(s.product.matrix + p * w.panel_bytes);
    for (int64_t column = 0; column < s.columns; column += kPartColumns) {
        const int64_t left = s.columns - column;
        const int64_t columns = left < kPartColumns ? left : kPartColumns;
        const Part part{s, column / kDeep, steps_of(columns), wide * kPanelPart,
                        s.column + column == 0};
        const int64_t panel = w.panel_bytes / 2;
        const int64_t ahead = left > kPartColumns ? kPanelPart : wide * panel - column * kLanes;
        unpack<W>(panels + (s.column + column) * kLanes, panel, wide, columns, ahead, s.scratch.w,
                  part.part_step);
        switch (wide) {
        case 1: multiply_part<W, 1>(part, y); break;
        case 2: multiply_part<W, 2>(part, y); break;
        case 3: multiply_part<W, 3>(part, y); break;
        default: multiply_part<W, 4>(part, y);
        }
    }
}

// Multiplies rows whose results for these panels fit the scratch.
template <class W>
void multiply_pass(const Product& product, int64_t row, int64_t rows, int64_t begin, int64_t end,
                   FloatScratch& scratch) {
    const int64_t columns = product.weight->columns, room = tiles_of(rows) * kHigh * W::kParts;
    const int64_t strip = FloatScratch::kX / room / kPartColumns * kPartColumns;
    // Many rows share the loaded weights, few rows are loaded once for many panels.
    const int64_t wide = tiles_of(rows) > 1 ? 2 : kMaxWide, panel_y = tiles_of(rows) * kSums;
    for (int64_t column = 0; column < columns; column += strip) {
        const int64_t left = columns - column;
        const Strip s{product, scratch, row, rows, column, left < strip ? left : strip, W::kParts};
        copy_rows(s);
        for (int64_t p = begin; p < end; p += wide)
            multiply_panels<W>(s, p, static_cast<int>(end - p < wide ? end - p : wide),
                               scratch.y + (p - begin) * panel_y);
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* y = product.y + product.row(row + r) * product.y_columns;
        for (int64_t p = begin; p < end; ++p)
            store(product, y, p, F32::load(scratch.y + (p - begin) * panel_y + r * kLanes));
    }
}

// ---- Few rows, in vector registers: the weights are read faster than through tiles. ----

// The columns of a weight type, and rows of x as [parts][columns] floats. add() adds a column's
// products to one sum for each product of parts.
template <class W>
struct VectorTiles {
    static constexpr int kProducts = W::kParts == 1 ? 1 : 3;
    static constexpr int kFetchColumns = 8;  // columns between two calls of fetch()
    static constexpr int kMaxRows = W::kParts == 1 ? 8 : 2;
    static constexpr int kCodeBytes = kFetchColumns * kLanes * 2;
    static constexpr int kBytes = kCodeBytes;

    struct Rows {
        const float* x;
        int64_t columns;
        PLAIT_INLINE_MEMBER Rows from(int row) const {
            return {x + row * W::kParts * columns, columns};
        }
    };

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const Rows& rows, int row,
                                         int64_t first, PanelPrefetch prefetch) {
        const PackedWeight& weight = *job.product->weight;
        const auto* w =
            reinterpret_cast<const uint16_t*>(job.product->matrix + first * weight.panel_bytes);
        const int64_t panel = weight.panel_bytes / 2, columns = rows.columns;
        alignas(64) F32 y[P][T];
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < T; ++r) y[p][r] = F32::zero();
        for (int64_t k = 0; k < columns; k += kDeep) {
            F32 sums[kProducts][P][T][2];
            for (auto& of_product : sums)
                for (auto& of_panel : of_product)
                    for (auto& of_row : of_panel) of_row[0] = of_row[1] = F32::zero();
            const auto add = [&](int64_t at, int odd) {
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    F32 column[W::kParts];
                    W::split(W::load(w + p * panel + at * kLanes), column);
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r) {
                        const float* x = rows.x + r * W::kParts * columns + at;
                        F32* high = &sums[0][p][r][odd];
                        *high = fma(column[0], F32::set(x[0]), *high);
                        if constexpr (kProducts == 3) {
                            F32 *low_x = &sums[1][p][r][odd], *low_w = &sums[2][p][r][odd];
                            *low_x = fma(column[0], F32::set(x[columns]), *low_x);
                            *low_w = fma(column[1], F32::set(x[0]), *low_w);
                        }
                    }
                }
            };
            const int64_t end = k + kDeep < columns ? k + kDeep : columns;
            int64_t at = k;
            for (; at + kFetchColumns <= end; at += kFetchColumns) {
                if (T > 1) prefetch.template fetch<P>();  // for one row the hardware prefetches
#pragma GCC unroll 8
                for (int i = 0; i < kFetchColumns; ++i) add(at + i, i % 2);
            }
            for (; at < end; ++at) {
                if ((at - k) % 2 == 0)
                    add(at, 0);
                else
                    add(at, 1);
            }
#pragma GCC unroll 3
            for (int i = 0; i < kProducts; ++i)
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
                    for (int r = 0; r < T; ++r)
                        y[p][r] = y[p][r] + (sums[i][p][r][0] + sums[i][p][r][1]);
        }
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < T; ++r)
                if (row + r < job.rows) store(job, row + r, first + p, y[p][r]);
    }
};

template <class W>
void multiply_few(const Product& product, int64_t begin, int64_t end, float* x) {
    const int64_t columns = product.weight->columns;
    for_each_row_group(product, begin, end, [&](const TileJob& job, int64_t i) {
        for (int r = 0; r < job.rows; ++r) {
            auto* all = const_cast<unsigned char*>(product.x);  // only read
            const RoundedRow from = rounded_row(all, product.x_rows, columns, W::kParts,
                                                product.row(i + r) / product.x_share);
            for (int part = 0; part < W::kParts; ++part)
                for (int64_t k = 0; k < columns; k += kLanes)
                    F32::load_bf16(from.columns + part * from.part_step + k / kDeep * from.step +
                                   k % kDeep)
                        .store(x + (r * W::kParts + part) * columns + k,
                               columns - k < kLanes ? columns - k : kLanes);
        }
        using Tiles = VectorTiles<W>;
        const typename Tiles::Rows rows{x, columns};
        if (job.rows == 1) return walk_panels<Tiles, 4>(job, rows);
        if (job.rows <= 4 && W::kParts == 1) return walk_panels<Tiles, 2>(job, rows);
        walk_panels<Tiles, 1>(job, rows);
    });
}

template <class W>
void multiply_type(const Product& product, int64_t begin, int64_t end, FloatScratch& scratch) {
    constexpr int kFew = VectorTiles<W>::kMaxRows;
    const int64_t floats = (product.n > 1 ? kFew : 1) * W::kParts * product.weight->columns;
    if (product.n <= kFew && 2 * floats <= FloatScratch::kX)
        return multiply_few<W>(product, begin, end, reinterpret_cast<float*>(scratch.x));
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) {
        const bool is_weight = tile >= 6;
        shapes.rows[tile] =
            is_weight || product.n > kHigh ? kHigh : static_cast<uint8_t>(product.n);
        shapes.row_bytes[tile] = kRowBytes;
    }
    const OpenTiles tiles(shapes);
    constexpr int64_t kMaxRows = kPassRows / W::kParts;
    for (int64_t row = 0; row < product.n; row += kMaxRows) {
        const int64_t rows = product.n - row < kMaxRows ? product.n - row : kMaxRows;
        const int64_t panels = FloatScratch::kY / (tiles_of(rows) * kSums);
        for (int64_t p = begin; p < end; p += panels)
            multiply_pass<W>(product, row, rows, p, p + panels < end ? p + panels : end, scratch);
    }
}

// An unpacked panel serves every row of a task, so tasks are made smaller by taking panels first.
ProductCut cut_floats(int64_t panels, int64_t rows, int64_t matrices, int64_t threads) {
    int64_t wanted = kFloatTasksPerThread * threads;
    if (wanted < kMinFloatTasks) wanted = kMinFloatTasks;
    if (rows <= kHigh) wanted = kTasksOfFewRows;  // share the reading among threads evenly
    ProductCut cut;
    cut.panels = kPassPanels;
    cut.rows = kPassRows;
    const auto tasks = [&] {
        cut.panel_tasks = (panels + cut.panels - 1) / cut.panels;
        cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
        return cut.panel_tasks * cut.row_tasks * matrices;
    };
    while (tasks() < wanted && cut.panels > kMaxWide) cut.panels /= 2;
    const auto halve_rows = [&](int64_t enough, int64_t min_rows) {
        while (tasks() < enough && cut.rows > min_rows && rows > cut.rows / 2) cut.rows /= 2;
    };
    halve_rows(wanted, kMinPassRows);
    halve_rows(threads, 2 * kHigh);
    return cut;
}

void multiply_floats(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    auto& tiles = *reinterpret_cast<FloatScratch*>(scratch);
    if (product.weight->format == DType::f16)
        return multiply_type<WeightF16>(product, begin, end, tiles);
    multiply_type<WeightBf16>(product, begin, end, tiles);
}

}  // namespace

const TileProduct kFloatProduct{1, sizeof(FloatScratch), cut_floats, multiply_floats};

}  // namespace plait::cpu::amx
