// What register tiles of every weight type share: a part of a product, the walk over its panels, and
// how sums leave.
#pragma once

#include "backend/cpu/kernels/products/product.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// Up to kMaxTileRows rows against panels [begin, end).
struct Job {
    const Product* product;
    int64_t begin, end;  // from product->first_panel on
    int rows;            // in use; a tile may compute more and drop them
    int group, groups;   // which of the jobs with these panels it is, and of how many
    float* y[kMaxTileRows];
};

// Memory to ask for while a tile is computed. It goes to the second level cache; the first takes too
// few requests at once.
struct Ahead {
    const unsigned char* next;
    const unsigned char* end;  // where `skip` bytes are left out
    int64_t skip;
    int64_t panel_bytes;
    int bytes;           // of each panel, at each ask()
    int64_t to_records;  // how far from a block's records those are that ask_records() takes; or 0

    template <int P>
    PLAIT_INLINE_MEMBER void ask() {
        for (int i = 0; i < bytes; i += 64)
            for (int p = 0; p < P; ++p) __builtin_prefetch(next + p * panel_bytes + i, 0, 2);
        next += bytes;
        if (P == 1 && next >= end) {
            next += skip;
            end += panel_bytes;
        }
    }
    template <int P>
    PLAIT_INLINE_MEMBER void ask_records(const unsigned char* records, int n) const {
        if (P > 1 || to_records == 0) return;
        for (int i = 0; i < n; i += 64) __builtin_prefetch(records + to_records + i, 0, 2);
    }
};

// y of a panel into a row of product.y, with what is added to it.
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

PLAIT_INLINE void store(const Job& job, int row, int64_t panel, F32 y) {
    store(*job.product, job.y[row], panel, y);
}

// Calls body(job, i) for every kMaxTileRows of the product's rows, the first of which is row i.
template <class Body>
PLAIT_INLINE void each_tile_of_rows(const Product& product, int64_t begin, int64_t end, Body body) {
    Job job{};
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

// A product whose panels are made anew in scratch, `most` at a time: make(from, to) makes one of
// w.panel_bytes, multiply(product, n, scratch) takes the n that stand there.
template <class Make, class Multiply>
PLAIT_INLINE void multiply_made(const Product& product, const PackedWeight& w, int64_t most,
                                int64_t begin, int64_t end, unsigned char* scratch, Make make,
                                Multiply multiply) {
    const int64_t from_bytes = product.weight->panel_bytes;
    for (; begin < end; begin += most) {
        const int64_t n = end - begin < most ? end - begin : most;
        for (int64_t p = 0; p < n; ++p)
            make(product.matrix + (begin + p) * from_bytes, scratch + p * w.panel_bytes);
        Product made = product;
        made.weight = &w;
        made.matrix = scratch;
        made.first_panel = product.first_panel + begin;
        multiply(made, n, scratch + n * w.panel_bytes);
    }
}

// Tiles<...>::kHigh      rows of a tile, at most
//           ::kCodes     bytes of a panel between two ask(), without records
//           ::kAll       with them
//           ::Rows       from(row): those from there on
//           ::tile<P, T>(job, rows, row, panel, ahead)
//                        P panels times T rows, the first `row` of the job

// All rows of the job, tile after tile, while P panels are in the cache.
template <class Tiles, int P>
PLAIT_INLINE void panels_product(const Job& job, const typename Tiles::Rows& x, int64_t first) {
    constexpr int kHigh = Tiles::kHigh;
    const PackedWeight& w = *job.product->weight;
    const unsigned char* panels = job.product->matrix + first * w.panel_bytes;
    const int turns = (job.rows + kHigh - 1) / kHigh;
    int row = 0;
    for (int turn = 0; turn < turns; ++turn) {
        // One panel and one tile: all panels are one long stream, asked for some way ahead. Else what is
        // computed next, of which each of the first tiles asks for whole cache lines.
        Ahead ahead{panels + 4096,
                    panels + w.records_offset,
                    w.panel_bytes - w.records_offset,
                    w.panel_bytes,
                    Tiles::kCodes,
                    w.panel_bytes};
        const int tile = job.group * turns + turn, tiles = job.groups * turns;
        if (P > 1 || tiles > 1) {
            constexpr int kMost = Tiles::kAll > 64 ? Tiles::kAll / 64 : 1;
            const int sharing = tiles < kMost ? tiles : kMost;
            ahead.next = panels + w.panel_bytes * (job.groups > 1 ? job.end - job.begin : P) +
                         w.panel_bytes * tile / sharing;
            ahead.end = ahead.next + w.panel_bytes;
            ahead.bytes = tile < sharing ? Tiles::kAll / sharing : 0;
            ahead.to_records = 0;
        }
        const int rows = (job.rows - row + turns - turn - 1) / (turns - turn);
        const typename Tiles::Rows from = x.from(row);
        switch (rows) {
        case 1: Tiles::template tile<P, 1>(job, from, row, first, ahead); break;
        case 2: Tiles::template tile<P, 2>(job, from, row, first, ahead); break;
        case 3: Tiles::template tile<P, 3>(job, from, row, first, ahead); break;
        case 4: Tiles::template tile<P, 4>(job, from, row, first, ahead); break;
        case 5:
        case 6:  // a tile may be higher than the job: it reads what stands behind, and drops it
            if constexpr (kHigh == 8) Tiles::template tile<P, 6>(job, from, row, first, ahead);
            break;
        default:
            if constexpr (kHigh == 8) Tiles::template tile<P, 8>(job, from, row, first, ahead);
        }
        row += rows;
    }
}

template <class Tiles, int P>
void walk_panels(const Job& job, const typename Tiles::Rows& x) {
    int64_t p = job.begin;
    for (; p + P <= job.end; p += P) panels_product<Tiles, P>(job, x, p);
    if constexpr (P > 1)
        for (; p < job.end; ++p) panels_product<Tiles, 1>(job, x, p);
}

}  // namespace plait::cpu::PLAIT_ISA
