// One register tile's work, and how its sums leave it.
#pragma once

#include "backend/cpu/kernels/product.h"
#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// Up to kTileRows rows against panels [begin, end).
struct Job {
    const Product* product;
    int64_t begin, end;
    int rows;    // in use; a tile may compute more and drop them
    bool first;  // the weights come from memory, not from a cache
    float* y[kTileRows];
};

PLAIT_INLINE void store(const Job& job, int row, int64_t panel, F32 y) {
    const Product& p = *job.product;
    constexpr int kPanel = F32::kLanes;
    const int64_t first = panel * kPanel;
    const int64_t n = p.weight->rows - first;
    float* to = job.y[row] + first;
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

// Calls body(job, i) for every kTileRows of the product's rows, the first of which is row i.
template <class Body>
PLAIT_INLINE void each_tile_of_rows(const Product& product, int64_t begin, int64_t end, Body body) {
    Job job{};
    job.product = &product;
    job.begin = begin;
    job.end = end;
    for (int64_t i = 0; i < product.n; i += kTileRows) {
        const int64_t left = product.n - i;
        job.first = i == 0;
        job.rows = left < kTileRows ? static_cast<int>(left) : static_cast<int>(kTileRows);
        for (int r = 0; r < job.rows; ++r)
            job.y[r] = product.y + product.row(i + r) * product.weight->rows;
        body(job, i);
    }
}

}  // namespace plait::cpu::PLAIT_ISA
