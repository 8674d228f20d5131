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
#include "backend/cpu/amx/products.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::amx {
namespace {

constexpr int kLanes = F32::kLanes;
constexpr int kHigh = kTileRows;      // rows of a tile
constexpr int kDeep = 32;             // columns of a tile
constexpr int kTile = kHigh * kDeep;  // elements of a tile, of rows as of weights
constexpr int kRowBytes = 64;         // of every tile
constexpr int kTileBytes = kTile * 2;
constexpr int kSums = kHigh * kLanes;

constexpr int kMaxWide = 4;          // panels that are multiplied together
constexpr int64_t kPassRows = 512;   // max rows for which a panel is unpacked once
constexpr int64_t kPassPanels = 16;  // max panels of that many rows whose results fit the scratch
constexpr int64_t kMinPassRows = 256;
// With fewer tiles of rows, what is read next is fetched while weights are unpacked, else while
// tiles are multiplied.
constexpr int64_t kManyTiles = 8;

constexpr int64_t kPanelStrip = kStripColumns * kLanes;  // elements of an unpacked panel's strip
constexpr int64_t kStripSteps = kStripColumns / kDeep;

constexpr int64_t tiles_of(int64_t rows) { return (rows + kHigh - 1) / kHigh; }
constexpr int64_t steps_of(int64_t columns) { return (columns + kDeep - 1) / kDeep; }

// The scratch of a thread. Fewer rows leave room for more columns and panels. multiply_few() keeps its
// rows in x as floats, which take twice the room.
struct FloatScratch {
    static constexpr int64_t kStrips = kPassRows * kStripColumns;  // elements of x read together
    static constexpr int64_t kX = 2 * kStrips, kY = kPassRows * kPassPanels * kLanes;
    alignas(64) uint16_t x[kX];                          // [strips][tiles][parts][steps][16][32]
    alignas(64) uint16_t w[kMaxWide * 2 * kPanelStrip];  // [parts][panels][steps][16][32]
    alignas(64) float y[kY];                             // [panels][tiles][16][lanes]
};

// The upper halves of two registers: `low` in the lower half of each lane, `high` in the upper half.
PLAIT_INLINE __m512i side_by_side(F32 low, F32 high) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(low.v), 16),
                                     _mm512_castps_si512(high.v),
                                     _mm512_set1_epi32(static_cast<int>(0xffff0000)), 0xf8);
}

// A number as the sum of two whose upper halves matter: x rounded to BF16, and the rest. An F16
// number is that sum without an error.
struct TwoHalves {
    F32 high, low;
};
PLAIT_INLINE TwoHalves split_in_two(F32 x) {
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x8000));
    const F32 high{_mm512_castsi512_ps(
        _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
    return {high, x - high};
}

// A weight type: load() reads a column of a panel, split() returns the kParts BF16 numbers whose sum
// it is. As many make up x. put_pair() writes two columns, or one and zeros, as a row of each part's
// tile. The parts are `part_step` elements apart.
struct WeightBf16 {
    static constexpr int kParts = 1;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* column) { return F32::load_bf16(column); }
    PLAIT_INLINE_MEMBER static void split(F32 w, F32 (&to)[kParts]) { to[0] = w; }
    PLAIT_INLINE_MEMBER static void put_pair(const uint16_t* column, bool is_last, uint16_t* to,
                                             int64_t) {
        alignas(64) static constexpr uint16_t kSideBySide[2 * kLanes] = {
            0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const __m512i pair = _mm512_maskz_loadu_epi16(is_last ? 0xffff : 0xffffffff, column);
        _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kSideBySide), pair));
    }
};
struct WeightF16 {
    static constexpr int kParts = 2;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* column) { return F32::load_f16(column); }
    PLAIT_INLINE_MEMBER static void split(F32 w, F32 (&to)[kParts]) {
        const TwoHalves halves = split_in_two(w);
        to[0] = halves.high;
        to[1] = halves.low;
    }
    PLAIT_INLINE_MEMBER static void put_pair(const uint16_t* column, bool is_last, uint16_t* to,
                                             int64_t part_step) {
        F32 first[kParts], second[kParts];
        split(load(column), first);
        split(is_last ? F32::zero() : load(column + kLanes), second);
        for (int part = 0; part < kParts; ++part)
            _mm512_store_si512(to + part * part_step, side_by_side(first[part], second[part]));
    }
};

// A strip of some rows of x. Its first tiles may be read where they are, the others are copied.
struct Strip {
    int64_t column, columns;
    int64_t tiles;
    int64_t tile_x;  // elements of a tile
    int64_t in_place;
    const uint16_t* first;  // of the tiles that are in place
    uint16_t* copies;       // of all tiles; those in place are not written

    int64_t steps() const { return steps_of(columns); }
    int64_t part_step() const { return steps() * kTile; }
    const uint16_t* tile(int64_t i) const { return (i < in_place ? first : copies) + i * tile_x; }
};

// Some rows of a product.
struct Rows {
    const Product& product;
    int64_t row, rows;
    int parts;

    int64_t tiles() const { return tiles_of(rows); }
    RoundedRow rounded(int64_t i) const {
        auto* x = const_cast<unsigned char*>(product.x);  // only read
        return rounded_row(x, product.x_rows, product.weight->columns, parts,
                           product.row(row + i) / product.x_share);
    }
    // The number of whole tiles that lie one after the other.
    int64_t in_place() const {
        const int64_t first = product.first + row;
        if (!product.in_place() || first % kHigh != 0) return 0;
        const int64_t whole = (product.x_rows - first) / kHigh;
        return whole < tiles() ? whole : tiles();
    }
    Strip strip(int64_t i, uint16_t* copies) const {
        const int64_t column = i * kStripColumns, left = product.weight->columns - column;
        const int64_t columns = left < kStripColumns ? left : kStripColumns;
        return {column,     columns,
                tiles(),    parts * steps_of(columns) * kTile,
                in_place(), rounded(0).at(0, column / kDeep),
                copies};
    }
};

// Copies the rows of tiles that are not in place. Missing rows keep what they had: nothing reads
// their results.
void copy_rows(const Rows& rows, const Strip& s) {
    for (int64_t i = s.in_place * kHigh; i < rows.rows; ++i) {
        const RoundedRow from = rows.rounded(i);
        uint16_t* const row = s.copies + i / kHigh * s.tile_x + i % kHigh * kDeep;
        for (int part = 0; part < rows.parts; ++part)
            for (int64_t k = 0; k < s.steps(); ++k)
                memcpy(row + part * s.part_step() + k * kTile, from.at(part, s.column / kDeep + k),
                       kRowBytes);
    }
}

// The weights of `wide` panels in a strip, and where the weights begin that are read after them.
struct StripWeights {
    const uint16_t* panels;  // the strip's first column of the first panel
    int64_t panel;           // elements from a panel to the next
    int wide;
    const uint16_t* next;  // as `panels`, of the strip or the panels that follow

    int64_t part_step() const { return wide * kPanelStrip; }
};

// Unpacks a strip of panels into tiles. Panels take turns, since several streams are read faster
// than one. Prefetches what is read next if there are few rows to do it later.
template <class W>
void unpack(const StripWeights& w, const Strip& s, uint16_t* to) {
    const uint16_t* from = w.panels;
    const int64_t ahead = s.tiles < kManyTiles ? w.next - w.panels : 0;
    for (int64_t k = 0; k < s.steps() * kDeep; k += 2, from += 2 * kLanes, to += kDeep) {
        for (int i = 0; i < w.wide; ++i) {
            const uint16_t* pair = from + i * w.panel;
            uint16_t* const tile = to + i * kPanelStrip;
            if (k < s.columns) {
                if (ahead != 0) __builtin_prefetch(pair + ahead, 0, 2);
                W::put_pair(pair, k + 1 == s.columns, tile, w.part_step());
            } else {
                for (int part = 0; part < W::kParts; ++part)
                    _mm512_store_si512(tile + part * w.part_step(), _mm512_setzero_si512());
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
        load_tile<7>(w + kPanelStrip, kRowBytes);
        add_bf16_product<2, 4, 7>();
        add_bf16_product<3, 5, 7>();
    } else {
        if constexpr (kWide > 1) {
            load_tile<7>(w + kPanelStrip, kRowBytes);
            add_bf16_product<1, 4, 7>();
        }
        if constexpr (kWide > 2) {
            load_tile<6>(w + 2 * kPanelStrip, kRowBytes);
            add_bf16_product<2, 4, 6>();
        }
        if constexpr (kWide > 3) {
            load_tile<7>(w + 3 * kPanelStrip, kRowBytes);
            add_bf16_product<3, 4, 7>();
        }
    }
}

// The sums of the next two tiles of rows. While these are multiplied, they are prefetched into the
// first level cache, a part in each step of a whole strip.
template <int kWide>
struct NextSums {
    static constexpr int kStepFloats = 2 * kSums / kStripSteps;

    const float* sums;
    int64_t panel_step;

    PLAIT_INLINE_MEMBER void fetch(int64_t step) const {
        for (int p = 0; p < kWide; ++p)
            for (int i = 0; i < kStepFloats; i += kLanes)
                __builtin_prefetch(sums + p * panel_step + step * kStepFloats + i, 1);
    }
};

// Multiplies the rows of kTall tiles by a strip of kWide panels, unpacked at w.
template <class W, int kTall, int kWide>
void multiply_rows(const Strip& s, int64_t tile, const uint16_t* w, float* y, Ahead& weights,
                   Ahead& rows) {
    constexpr int64_t kPartStep = kWide * kPanelStrip;
    const int64_t panel_step = s.tiles * kSums;
    y += tile * kSums;
    if (s.column == 0)
        clear_sums();
    else
        for_each_sum<kTall, kWide>(y, panel_step,
                                   []<int kSum>(float* at) { load_tile<kSum>(at, kRowBytes); });
    const uint16_t* high[2] = {s.tile(tile), s.tile(tile + kTall - 1)};
    const uint16_t* low[2] = {high[0] + s.part_step(), high[1] + s.part_step()};
    const NextSums<kWide> next{y + kTall * kSums, panel_step};
    for (int64_t k = 0; k < s.steps(); ++k, w += kTile) {
        if constexpr (kTall == 2) next.fetch(k);
        weights.fetch();
        add_step<kTall, kWide>(high, k * kTile, w);
        rows.fetch();
        if constexpr (W::kParts == 2) {
            add_step<kTall, kWide>(low, k * kTile, w);
            add_step<kTall, kWide>(high, k * kTile, w + kPartStep);
        }
    }
    for_each_sum<kTall, kWide>(y, panel_step,
                               []<int kSum>(float* at) { store_tile<kSum>(at, kRowBytes); });
}

// Multiplies the strip by kWide panels, unpacked at w. Meanwhile fetches the weights that follow.
template <class W, int kWide>
void multiply_strip(const Strip& s, const StripWeights& weights, const uint16_t* w, float* y,
                    Ahead& rows) {
    const int64_t tiles = s.tiles;
    Ahead ahead;
    int64_t tile = 0;
    if constexpr (kWide <= 2) {
        const int64_t pairs = tiles / 2, pairs_per_panel = (pairs + kWide - 1) / kWide;
        for (int64_t pair = 0; pair < pairs; ++pair, tile += 2) {
            if (tiles >= kManyTiles && pair % pairs_per_panel == 0) {
                const uint16_t* panel = weights.next + pair / pairs_per_panel * weights.panel;
                ahead = {panel, s.steps() * kTileBytes, pairs_per_panel * s.steps()};
            }
            multiply_rows<W, 2, kWide>(s, tile, w, y, ahead, rows);
        }
    }
    Ahead nothing;
    for (; tile < tiles; ++tile) multiply_rows<W, 1, kWide>(s, tile, w, y, nothing, nothing);
}

// Multiplies the strip by panels and adds the results to y.
template <class W>
void multiply_panels(const Strip& s, const StripWeights& weights, uint16_t* w, float* y,
                     Ahead& rows) {
    unpack<W>(weights, s, w);
    switch (weights.wide) {
    case 1: return multiply_strip<W, 1>(s, weights, w, y, rows);
    case 2: return multiply_strip<W, 2>(s, weights, w, y, rows);
    case 3: return multiply_strip<W, 3>(s, weights, w, y, rows);
    default: multiply_strip<W, 4>(s, weights, w, y, rows);
    }
}

// Multiplies rows whose results for these panels fit the scratch. Few rows take several strips
// together, so that weights are read one after the other. Many rows take one at a time, which stays
// in the second level cache for all panels, while the rows of the next strip are fetched.
template <class W>
void multiply_pass(const Product& product, int64_t row, int64_t rows, int64_t begin, int64_t end,
                   FloatScratch& scratch) {
    const PackedWeight& w = *product.weight;
    const Rows some{product, row, rows, W::kParts};
    const int64_t tiles = some.tiles(), strip_x = tiles * W::kParts * kStripSteps * kTile;
    const int64_t strips = (w.columns + kStripColumns - 1) / kStripColumns;
    const int64_t together = FloatScratch::kStrips / strip_x;
    // Many rows share the loaded weights, few rows are loaded once for many panels.
    const int64_t wide = tiles > 1 ? 2 : kMaxWide, panel_y = tiles * kSums;
    const auto strip = [&](int64_t i) { return some.strip(i, scratch.x + i % together * strip_x); };
    const auto weights = [&](int64_t p, int64_t i) {
        return reinterpret_cast<const uint16_t*>(product.matrix + p * w.panel_bytes) +
               i * kPanelStrip;
    };
    for (int64_t first = 0; first < strips; first += together) {
        const int64_t last = first + together < strips ? first + together : strips;
        for (int64_t i = first; i < last; ++i) copy_rows(some, strip(i));
        Ahead rows_ahead;
        const Strip next = strip(last < strips ? last : 0);
        if (tiles >= kManyTiles && next.in_place > 0) {
            const int64_t turns = (end - begin + wide - 1) / wide;
            rows_ahead = {next.first, next.in_place * next.tile_x * 2,
                          turns * (tiles / 2) * next.steps()};
        }
        for (int64_t p = begin; p < end; p += wide) {
            const int of_turn = static_cast<int>(end - p < wide ? end - p : wide);
            for (int64_t i = first; i < last; ++i) {
                const uint16_t* after = i + 1 < last     ? weights(p, i + 1)
                                        : p + wide < end ? weights(p + wide, first)
                                        : last < strips  ? weights(begin, last)
                                                         : weights(end, 0);
                multiply_panels<W>(strip(i), {weights(p, i), w.panel_bytes / 2, of_turn, after},
                                   scratch.w, scratch.y + (p - begin) * panel_y, rows_ahead);
            }
        }
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
    static constexpr int kBytes = kFetchColumns * kLanes * 2;

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
                    F32::load_bf16(from.at(part, k / kDeep) + k % kDeep)
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
    // Few rows share the reading among threads evenly.
    const int64_t wanted = rows <= kHigh ? kTasksOfFewRows : wanted_tasks(threads);
    ProductCut cut;
    cut.panels = kPassPanels;
    cut.rows = kPassRows;
    const auto tasks = [&] { return count_tasks(cut, panels, rows, matrices); };
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

extern const TileProduct kFloatProduct{1, sizeof(FloatScratch), cut_floats, multiply_floats};

}  // namespace plait::cpu::amx
