// Code that the products of every weight type share: how a product is divided into register tiles,
// prefetching, and the storing of results.
#pragma once

#include "backend/cpu/kernels/products/product.h"
#include "backend/cpu/simd/dot.h"

namespace plait::cpu::PLAIT_ISA {

// A part of a product: up to kMaxTileRows rows times panels [begin, end).
struct TileJob {
    const Product* product;
    int64_t begin, end;  // panels, counted from product->first_panel
    int rows;            // in use; a tile may compute more rows and drop them
    int group, groups;   // index of this job among those with the same panels, and their number
    float* y[kMaxTileRows];
};

// Memory to prefetch while a tile is computed. It goes to the second level cache, since the first
// level takes too few requests at once.
struct PanelPrefetch {
    const unsigned char* next;
    int64_t panel_bytes;
    int bytes;  // of each panel, per fetch()

    template <int P>
    PLAIT_INLINE_MEMBER void fetch() {
        for (int i = 0; i < bytes; i += 64)
            for (int p = 0; p < P; ++p) __builtin_prefetch(next + p * panel_bytes + i, 0, 2);
        next += bytes;
    }
};

// Stores a panel's results `y` in a row of product.y, after adding the bias and the residual.
PLAIT_INLINE void store(const Product& p, float* row, int64_t panel, F32 y) {
    constexpr int kPanel = F32::kLanes;
    const int64_t first = (p.first_panel + panel) * kPanel;
    const int64_t n = p.weight->rows - first;
    float* to = row + first - p.y_begin;
    const float* residual = p.residual ? p.residual + (to - p.y) : nullptr;
    if (n >= kPanel) {
        if (p.bias) y = y + F32::load(p.bias + first);
        if (residual) y = y + F32::load(residual);
        y.store(to);
    } else {
        if (p.bias) y = y + F32::load(p.bias + first, n);
        if (residual) y = y + F32::load(residual, n);
        y.store(to, n);
    }
}

PLAIT_INLINE void store(const TileJob& job, int row, int64_t panel, F32 y) {
    store(*job.product, job.y[row], panel, y);
}

// Stores the results of P panels by T rows, of which the job may have fewer. They pass through
// memory once, so that the loop over them need not be unrolled: with an index that the compiler does
// not know, it would keep `y` in memory while the tile is computed.
template <int P, int T>
PLAIT_INLINE void store_tile(const TileJob& job, int row, int64_t first, const F32 (&y)[P][T]) {
    alignas(64) float results[P * T * F32::kLanes];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < T; ++r) y[p][r].store(results + (p * T + r) * F32::kLanes);
    for (int p = 0; p < P; ++p)
        for (int r = 0; r < T; ++r)
            if (row + r < job.rows)
                store(job, row + r, first + p, F32::load(results + (p * T + r) * F32::kLanes));
}

// Calls body(job, i) for each group of up to kMaxTileRows rows of the product; i is its first row.
template <class Body>
PLAIT_INLINE void for_each_row_group(const Product& product, int64_t begin, int64_t end,
                                     Body body) {
    TileJob job{};
    job.product = &product;
    job.begin = begin;
    job.end = end;
    job.groups = static_cast<int>((product.n + kMaxTileRows - 1) / kMaxTileRows);
    for (int64_t i = 0; i < product.n; i += kMaxTileRows) {
        const int64_t left = product.n - i;
        job.group = static_cast<int>(i / kMaxTileRows);
        job.rows = left < kMaxTileRows ? static_cast<int>(left) : static_cast<int>(kMaxTileRows);
        for (int r = 0; r < job.rows; ++r)
            job.y[r] = product.y + product.row(i + r) * product.y_columns;
        body(job, i);
    }
}

// A product whose panels are converted in scratch first, at most `max_panels` at a time.
// convert(from, to) writes one panel of w.panel_bytes; multiply(product, n, scratch) multiplies n
// of them.
template <class Convert, class Multiply>
PLAIT_INLINE void multiply_converted(const Product& product, const PackedWeight& w,
                                     int64_t max_panels, int64_t begin, int64_t end,
                                     unsigned char* scratch, Convert convert, Multiply multiply) {
    const int64_t from_bytes = product.weight->panel_bytes;
    for (; begin < end; begin += max_panels) {
        const int64_t n = end - begin < max_panels ? end - begin : max_panels;
        for (int64_t p = 0; p < n; ++p)
            convert(product.matrix + (begin + p) * from_bytes, scratch + p * w.panel_bytes);
        Product converted = product;
        converted.weight = &w;
        converted.matrix = scratch;
        converted.first_panel = product.first_panel + begin;
        multiply(converted, n, scratch + n * w.panel_bytes);
    }
}

// A class Tiles defines how register tiles of a weight type are computed:
//   kMaxRows      max rows of a tile: 1 to 4, or 8; larger tiles are not compiled
//   kBytes        bytes of a panel between two calls of fetch(), on average
//   Rows          the activations; from(row) returns those from that row on
//   tile<P, T>(job, rows, row, panel, prefetch)
//                 multiplies P panels by T rows, the first of which is row `row` of the job

// Multiplies all rows of the job by P panels, tile after tile, while the panels are in the cache.
template <class Tiles, int P>
PLAIT_INLINE void multiply_panels(const TileJob& job, const typename Tiles::Rows& x,
                                  int64_t first) {
    constexpr int kMaxRows = Tiles::kMaxRows;
    const PackedWeight& w = *job.product->weight;
    const unsigned char* panels = job.product->matrix + first * w.panel_bytes;
    const int turns = (job.rows + kMaxRows - 1) / kMaxRows;
    int row = 0;
    for (int turn = 0; turn < turns; ++turn) {
        // With one panel and one tile, all panels are one long stream, which is fetched some
        // distance ahead. Otherwise the panels that come next are fetched; the first tiles share
        // them, each in whole cache lines.
        constexpr int64_t kStreamDistance = 4096;
        PanelPrefetch prefetch{panels + kStreamDistance, w.panel_bytes, Tiles::kBytes};
        const int tile = job.group * turns + turn, tiles = job.groups * turns;
        if constexpr (!TileShape::kSharesPrefetches) {
            if (job.rows > 1) prefetch.next = panels + w.panel_bytes * P;
        } else if (P > 1 || tiles > 1) {
            constexpr int kMaxSharing = Tiles::kBytes > 64 ? Tiles::kBytes / 64 : 1;
            const int sharing = tiles < kMaxSharing ? tiles : kMaxSharing;
            prefetch.next = panels + w.panel_bytes * (job.groups > 1 ? job.end - job.begin : P) +
                            w.panel_bytes * tile / sharing;
            prefetch.bytes = tile < sharing ? Tiles::kBytes / sharing : 0;
        }
        const int rows = (job.rows - row + turns - turn - 1) / (turns - turn);
        const typename Tiles::Rows from = x.from(row);
        // A tile may have more rows than the job: it reads past them and drops the results.
        switch (rows) {
        case 1: Tiles::template tile<P, 1>(job, from, row, first, prefetch); break;
        case 2:
            if constexpr (kMaxRows >= 2)
                Tiles::template tile<P, 2>(job, from, row, first, prefetch);
            break;
        case 3:
            if constexpr (kMaxRows >= 3)
                Tiles::template tile<P, 3>(job, from, row, first, prefetch);
            break;
        case 4:
            if constexpr (kMaxRows >= 4)
                Tiles::template tile<P, 4>(job, from, row, first, prefetch);
            break;
        case 5:
        case 6:
            if constexpr (kMaxRows == 8)
                Tiles::template tile<P, 6>(job, from, row, first, prefetch);
            break;
        default:
            if constexpr (kMaxRows == 8)
                Tiles::template tile<P, 8>(job, from, row, first, prefetch);
        }
        row += rows;
    }
}

template <class Tiles, int P>
void walk_panels(const TileJob& job, const typename Tiles::Rows& x) {
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) multiply_panels<Tiles, P>(job, x, p);
    if constexpr (P > 1)
        for (; p < job.end; ++p) multiply_panels<Tiles, 1>(job, x, p);
}

}  // namespace plait::cpu::PLAIT_ISA
