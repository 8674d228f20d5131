// Products with float weights: y = fma(w, x, y), column after column. BF16 weights may be
// multiplied two or four columns at a time instead, by rows that are rounded to BF16, with sums in
// f32.
#include "backend/cpu/kernels/products/product_job.h"

namespace plait::cpu::PLAIT_ISA {
namespace {

// Tiles of at most kRows rows.
template <class W, int kRows>
struct FloatTiles {
    using Element = typename W::Element;
    static constexpr int kFetchColumns = 8;  // columns between two calls of fetch()
    static constexpr int kMaxRows = kRows;
    static constexpr int kBytes = kFetchColumns * F32::kLanes * static_cast<int>(sizeof(Element));

    // kMaxTileRows pointers; those of rows that are not in use repeat another.
    struct Rows {
        const typename W::Input* const* x;
        PLAIT_INLINE_MEMBER Rows from(int row) const { return {x + row}; }
    };

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const Rows& rows, int row,
                                         int64_t first, PanelPrefetch prefetch) {
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
        for (; k + kFetchColumns <= weight.columns; k += kFetchColumns) {
            if (T > 1) prefetch.template fetch<P>();  // for one row the hardware prefetches
#pragma GCC unroll 8
            for (int i = 0; i < kFetchColumns; i += W::kColumns) add(k + i, load);
        }
        for (; k + W::kColumns <= weight.columns; k += W::kColumns) add(k, load);
        if constexpr (W::kColumns == 2)
            if (k < weight.columns) add(k, [](const Element* p) { return W::load_one(p); });
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < T; ++r)
                if (row + r < job.rows) store(job, row + r, first + p, y[p][r]);
    }
};

// Scratch: rows that are rounded to BF16.
template <class W>
void multiply_floats(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    const int64_t columns = product.weight->columns;
    for_each_row_group(product, begin, end, [&](const TileJob& job, int64_t i) {
        const typename W::Input* rows[kMaxTileRows];
        for (int r = 0; r < job.rows; ++r) {
            const float* x = reinterpret_cast<const float*>(product.x) +
                             product.row(i + r) / product.x_share * columns;
            rows[r] = W::row(x, columns, scratch + 2 * r * (columns + 1));
        }
        for (int r = job.rows; r < kMaxTileRows; ++r) rows[r] = rows[0];
        // Enough panels at once that their sums hide the latency of one.
        constexpr int kOfOneRow = sizeof(typename W::Element) == 2 ? TileShape::kHalfPanelsOfOneRow
                                                                   : TileShape::kPanelsOfOneRow;
        // From memory, the sums of one panel keep up with one stream. From a cache, four panels are
        // twice as fast as one. A cache may hold a whole model with panels of less than 16 KiB.
        if (TileShape::kReadsPanelsInTurn && W::kColumns == 2 && job.rows == 1 &&
            product.weight->are_streams_read_ahead && product.weight->panel_bytes >= 16 * kKiB)
            return walk_panels<FloatTiles<W, 1>, 1>(job, {rows});
        if (job.rows == 1) return walk_panels<FloatTiles<W, 1>, kOfOneRow>(job, {rows});
        if (job.rows <= kFewFloatRows)
            return walk_panels<FloatTiles<W, kFewFloatRows>, kPanelsOfFewFloatRows>(job, {rows});
        walk_panels<FloatTiles<W, TileShape::kFloatRows>, TileShape::kFloatPanels>(job, {rows});
    });
}

// Products of many rows with F16 weights: a task's panels are widened to f32 once for all of its
// rows. A widened weight is the same number, so outputs have the same bits. Scratch: widened
// panels, then the scratch of multiply_floats().
void multiply_widened(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    constexpr int kPanel = F32::kLanes;
    const PackedWeight& packed = *product.weight;
    PackedWeight w = packed;
    w.panel_bytes = widened_panel_bytes(packed);
    const auto widen = [&](const unsigned char* from, unsigned char* to) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        auto* whole = reinterpret_cast<float*>(to);
        for (int64_t k = 0; k < w.columns * kPanel; k += kPanel)
            F32::load_f16(half + k).store(whole + k);
    };
    multiply_converted(product, w, widened_panels(packed), begin, end, scratch, widen,
                       [](const Product& widened, int64_t n, unsigned char* rest) {
                           multiply_floats<ColumnF32>(widened, 0, n, rest);
                       });
}

// ---- BF16 weights in matrices of two rows by two lanes, for instruction sets that have them. Rows are
// rounded to BF16; columns are added four at a time, from the first to the last. ----

// Rows in BF16, [fours of columns][pairs][2][4], or of a single row [fours][4].
struct Bf16Rows {
    const uint16_t* x;
    int64_t pairs;
    PLAIT_INLINE_MEMBER Bf16Rows from(int) const { return *this; }
};

// `get(r)` returns row r as floats. The last of an odd number of rows is its own partner, unless it
// is the only one.
template <class Get>
PLAIT_INLINE Bf16Rows bf16_rows(Get get, int n, int64_t columns, unsigned char* scratch) {
    auto* to = reinterpret_cast<uint16_t*>(scratch);
    const int pairs = (n + 1) / 2, used = n == 1 ? 1 : 2 * pairs;
    for (int r = 0; r < used; ++r) {
        const float* x = get(r < n ? r : n - 1);
        uint16_t* row = to + r / 2 * 8 + r % 2 * 4;
        const int64_t step = n == 1 ? 4 : 8 * pairs;
        int64_t k = 0;
        for (; k + 4 <= columns; k += 4, row += step) F32::load(x + k).store_bf16(row);
        if (k < columns) F32::load(x + k, columns - k).store_bf16(row);
    }
    return {to, pairs};
}

template <int kRows, class Matrix = Bf16Matrix>
struct Bf16Tiles {
    static constexpr int kFetchColumns = 8;  // columns between two calls of fetch()
    static constexpr int kMaxRows = kRows;
    static constexpr int kBytes = kFetchColumns * F32::kLanes * 2;
    using Rows = Bf16Rows;

    template <int P, int T>
    PLAIT_INLINE_MEMBER static void tile(const TileJob& job, const Bf16Rows& rows, int row,
                                         int64_t first, PanelPrefetch prefetch) {
        constexpr int kPairs = (T + 1) / 2, kFour = 4 * F32::kLanes;
        const PackedWeight& weight = *job.product->weight;
        const uint16_t* w =
            reinterpret_cast<const uint16_t*>(job.product->matrix + first * weight.panel_bytes);
        const int64_t next = weight.panel_bytes / 2, fours = (weight.columns + 3) / 4;
        const uint16_t* x = rows.x;
        F32 y[P][kPairs][2];
        for (int p = 0; p < P; ++p)
            for (int r = 0; r < kPairs; ++r) y[p][r][0] = y[p][r][1] = F32::zero();
        const auto add = [&] {
            decltype(Matrix::load(w)) lanes[P][2];
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p)
                for (int q = 0; q < 2; ++q) lanes[p][q] = Matrix::load(w + p * next + 8 * q);
#pragma GCC unroll 4
            for (int r = 0; r < kPairs; ++r) {
                const auto two = T == 1 ? Matrix::load_row(x) : Matrix::load(x + 8 * r);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p)
                    for (int q = 0; q < 2; ++q)
                        y[p][r][q] = Matrix::add(y[p][r][q], two, lanes[p][q]);
            }
            w += kFour;
            x += T == 1 ? 4 : 8 * rows.pairs;
        };
        int64_t k = 0;
        for (; k + 2 <= fours; k += 2) {
            if (T > 1) prefetch.template fetch<P>();  // for one row the hardware prefetches
            add();
            add();
        }
        if (k < fours) add();
        F32 of_rows[P][T];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int r = 0; r < T; ++r)
                of_rows[p][r] = Matrix::row(y[p][r / 2][0], y[p][r / 2][1], r % 2);
        store_tile(job, row, first, of_rows);
    }
};

template <class Matrix = Bf16Matrix>
void multiply_bf16_matrices(const Product& product, int64_t begin, int64_t end,
                            unsigned char* scratch) {
    const int64_t columns = product.weight->columns;
    for_each_row_group(product, begin, end, [&](const TileJob& job, int64_t i) {
        const auto get = [&](int r) {
            return reinterpret_cast<const float*>(product.x) +
                   product.row(i + r) / product.x_share * columns;
        };
        const Bf16Rows rows = bf16_rows(get, job.rows, columns, scratch);
        if (job.rows == 1) return walk_panels<Bf16Tiles<1, Matrix>, 4>(job, rows);
        if (job.rows <= 4) return walk_panels<Bf16Tiles<4, Matrix>, 4>(job, rows);
        walk_panels<Bf16Tiles<8, Matrix>, 2>(job, rows);
    });
}

template <bool kMatrices>
void multiply_bf16_by_dot(const Product& product, int64_t begin, int64_t end,
                          unsigned char* scratch) {
    if constexpr (kMatrices)
        multiply_bf16_matrices(product, begin, end, scratch);
    else
        multiply_floats<DotBF16>(product, begin, end, scratch);
}

}  // namespace

void multiply_f32(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    multiply_floats<ColumnF32>(product, begin, end, scratch);
}

void multiply_f16(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    if (widens(*product.weight, product.n)) return multiply_widened(product, begin, end, scratch);
    multiply_floats<ColumnF16>(product, begin, end, scratch);
}

void multiply_bf16(const Product& product, int64_t begin, int64_t end, unsigned char* scratch) {
    constexpr bool kMatrices = kRow.bf16_dot_is_fast && kRow.lane_bytes == 8;
    if (product.weight->uses_bf16_dot())
        return multiply_bf16_by_dot<kMatrices>(product, begin, end, scratch);
    multiply_floats<ColumnBF16>(product, begin, end, scratch);
}

}  // namespace plait::cpu::PLAIT_ISA
