// The cost model of products: how a product is cut into tasks, when weights are converted before
// they are multiplied, and the scratch that this takes. No choice made here changes a result.
//
// Constants without a measurement in their comment were chosen by hand;
// bench/kernels/bench_linear.cpp shows their effect. docs/decisions 0011, 0014, 0016 and 0021 have
// the measurements.
#pragma once

#include "backend/cpu/kernels/products/packed.h"

namespace plait::cpu {

constexpr int64_t kKiB = 1024;
constexpr int64_t kPageBytes = 4 * kKiB;  // hardware prefetches stay within a page

// Max rows of a register tile: eight sums of AVX-512 leave registers for what is loaded.
constexpr int64_t kMaxTileRows = 8;
// With at most this many rows a product is bound by reading its weights, as with one row.
constexpr int64_t kFewRows = kMaxTileRows;
// Above this, it is bound by arithmetic.
constexpr int64_t kManyRows = 4 * kMaxTileRows;

// Bytes of a task's panels. They stay in the second level cache while the task's rows pass.
constexpr int64_t kMaxTaskBytes = 256 * kKiB;
constexpr int64_t kMinTaskBytes = 32 * kKiB;
constexpr int64_t kMaxTaskBytesOfMediumRows = 64 * kKiB;  // for kFewRows < rows <= kManyRows
// Tasks that a matrix is cut into, if their sizes allow it. With few rows, small tasks share the
// reading among threads evenly.
constexpr int64_t kTasksOfFewRows = 64;
constexpr int64_t kTasksOfManyRows = 16;
// A step has at least this many tasks, if the matrix and its rows can be cut into as many.
constexpr int64_t kMinTasks = 32;

// A matrix of at most this many panels is cut between any two of them. In larger ones, a task has a
// multiple of the panels that a register tile multiplies together.
constexpr int64_t kSmallMatrixPanels = 64;
// Panels that a tile of at most three rows of floats multiplies together.
constexpr int64_t kPanelsOfFewFloatRows = 4;
constexpr int64_t kFewFloatRows = 3;
// Max panels that a tile of a block type multiplies together (block_product.h).
constexpr int64_t kMaxBlockPanels = 3;

// Outputs for which rows are rounded to BF16 once: 198 to 207 G operations a second on one thread
// of a Zen 4 with 16 panels of 16 lanes, and 157 with four panels (docs/decisions/0021).
constexpr int64_t kBf16TaskOutputs = 256;

// Max rows of a task with many rows. Panels that were converted for a task serve more rows.
constexpr int64_t kMaxTaskRows = 8 * kMaxTileRows;
constexpr int64_t kMaxTaskRowsOfConverted = 16 * kMaxTileRows;  // widened or unpacked
constexpr int64_t kMaxTaskRowsOfExpanded = 32 * kMaxTileRows;
// If there are too few tasks, the rows of a task are halved, but not below this number.
constexpr int64_t kMinTaskRows = 2 * kMaxTileRows;

// With at most this many rows, expanded weights are multiplied lane by lane (expanded_product.cpp):
// a row takes twice as long as in tiles, but the codes are not moved.
constexpr int64_t kMaxExpandedLaneRows = 2;

// Panels of F16 that are widened at once.
constexpr int64_t kMinWidenedPanels = 2;
constexpr int64_t kMaxWidenedPanels = 64;

PLAIT_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
PLAIT_INLINE int64_t clamp_to(int64_t value, int64_t min, int64_t max) {
    return value < min ? min : value > max ? max : value;
}

// A product is cut into panel_tasks * row_tasks tasks of `panels` panels by `rows` rows.
struct ProductCut {
    int64_t panels, rows;
    int64_t panel_tasks, row_tasks;
};

struct Product;

// Products with some types of weights, for instruction sets that have other kernels for them (amx/,
// blas/).
struct TileProduct {
    int64_t min_rows;       // a product of fewer rows is computed without it
    int64_t scratch_bytes;  // per thread
    ProductCut (*cut)(int64_t panels, int64_t rows, int64_t matrices, int64_t threads);
    // As multiply() of product.h.
    void (*multiply)(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);
};

// True if a product of `rows` rows widens F16 panels to f32 first (float_product.cpp).
PLAIT_INLINE bool may_widen(const PackedWeight& weight) {
    return weight.format == DType::f16 && weight.isa->widens_f16_panels;
}
PLAIT_INLINE bool widens(const PackedWeight& weight, int64_t rows) {
    return may_widen(weight) && rows > kManyRows;
}
PLAIT_INLINE int64_t widened_panel_bytes(const PackedWeight& weight) {
    return weight.columns * weight.lanes * 4;
}
PLAIT_INLINE int64_t widened_panels(const PackedWeight& weight) {
    return clamp_to(kMaxTaskBytes / widened_panel_bytes(weight), kMinWidenedPanels,
                    kMaxWidenedPanels);
}

// True if a product of `rows` rows unpacks its panels first (block_product.h). With 512 rows this
// takes 2 to 20 % less time on a Zen 3, and with 16 rows up to 25 % more (docs/decisions/0020).
PLAIT_INLINE bool may_unpack(const PackedWeight& weight) {
    return weight.isa->unpacks_panels && is_block_type(weight.format) &&
           !is_irregular(weight.format);
}
PLAIT_INLINE bool unpacks(const PackedWeight& weight, int64_t rows) {
    return may_unpack(weight) && rows > kManyRows;
}
// A code has two bytes at most, and 16 columns have two floats at most: 2.5 bytes, rounded up.
PLAIT_INLINE int64_t max_unpacked_bytes(const PackedWeight& weight) {
    return weight.columns * 3 * weight.lanes;
}

// Returns the target size of a task's panels, in bytes.
PLAIT_INLINE int64_t target_task_bytes(int64_t matrix_bytes, int64_t rows) {
    const int64_t tasks = rows <= kManyRows ? kTasksOfFewRows : kTasksOfManyRows;
    const bool some = rows > kFewRows && rows <= kManyRows;
    return clamp_to(matrix_bytes / tasks, kMinTaskBytes,
                    some ? kMaxTaskBytesOfMediumRows : kMaxTaskBytes);
}

// The number of panels that a register tile multiplies together; tasks have a multiple of it.
PLAIT_INLINE int64_t panels_together(const PackedWeight& weight, int64_t rows) {
    if (weight.panels() <= kSmallMatrixPanels) return 1;
    if (is_irregular(weight.format) && rows <= kManyRows) return 1;
    if (!is_float(weight.format)) return kMaxBlockPanels;
    if (rows <= kFewFloatRows || kPanelsOfFewFloatRows % weight.isa->float_tile_panels == 0)
        return kPanelsOfFewFloatRows;
    return weight.isa->float_tile_panels;
}

PLAIT_INLINE int64_t max_task_rows(const PackedWeight& weight, int64_t rows) {
    if (rows <= kFewRows) return kFewRows;
    if (is_irregular(weight.format)) return kMaxTaskRowsOfExpanded;
    const bool converts = widens(weight, rows) || unpacks(weight, rows);
    return converts ? kMaxTaskRowsOfConverted : kMaxTaskRows;
}

// Returns how a product of `rows` rows with each of `matrices` is cut for `threads`.
PLAIT_INLINE ProductCut cut_product(const PackedWeight& weight, int64_t rows, int64_t matrices,
                                    int64_t threads) {
    if (weight.tiles && rows >= weight.tiles->min_rows)
        return weight.tiles->cut(weight.panels(), rows, matrices, threads);
    const int64_t panel_bytes = weight.product_panel_bytes();
    const int64_t target = target_task_bytes(panel_bytes * weight.panels() * matrices, rows);
    const int64_t together = panels_together(weight, rows);
    ProductCut cut;
    cut.panels = clamp_to(target / panel_bytes / together * together, together, weight.panels());
    if (weight.uses_bf16_dot() && rows > kManyRows)
        cut.panels = clamp_to(kBf16TaskOutputs / weight.lanes, 1, weight.panels());
    cut.panel_tasks = (weight.panels() + cut.panels - 1) / cut.panels;
    cut.rows = max_task_rows(weight, rows);
    const int64_t side_by_side = cut.panel_tasks * matrices;
    while (cut.rows > kMinTaskRows && side_by_side * ((rows + cut.rows - 1) / cut.rows) < kMinTasks)
        cut.rows /= 2;
    cut.row_tasks = (rows + cut.rows - 1) / cut.rows;
    return cut;
}

// With at most kRedoRows rows, another thread may repeat tasks of a thread that the operating
// system has suspended. Outputs are then computed in kRedoFloats floats of the scratch, in front of
// the scratch of the product, and committed only while the thread still owns the tasks.
constexpr int64_t kRedoRows = 2 * kMaxTileRows;
constexpr int64_t kRedoFloats = 16 * kKiB;

// Bytes of a tile of quantised rows with up to two sums for every 32 columns of each, or of a tile
// of rows in BF16. The same rows in pairs follow it, if the instruction set multiplies matrices.
PLAIT_INLINE int64_t paired_scratch(int64_t columns) { return kMaxTileRows * 2 * columns; }

// Scratch of a product on one thread, in bytes: a tile of rows, and a task's panels, if they are
// expanded or widened.
PLAIT_INLINE int64_t product_scratch_bytes(const PackedWeight& weight) {
    const int64_t panel = weight.product_panel_bytes();
    int64_t converted = 0;
    if (is_irregular(weight.format))
        converted = larger(kMaxBlockPanels * panel, kMaxTaskBytes);
    else if (may_widen(weight))
        converted = widened_panels(weight) * widened_panel_bytes(weight);
    else if (may_unpack(weight))
        converted = larger(kMaxBlockPanels * max_unpacked_bytes(weight), kMaxTaskBytes);
    const int64_t tiles = weight.isa->lane_bytes == 8 ? 2 : 1;
    const int64_t bytes = converted + tiles * paired_scratch(weight.columns + 1) + 256;
    return weight.tiles ? larger(weight.tiles->scratch_bytes, bytes) : bytes;
}

}  // namespace plait::cpu
