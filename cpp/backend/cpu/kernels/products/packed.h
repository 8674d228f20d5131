// How a packed weight matrix looks to a kernel, and how a product of it is cut into tasks.
//
// A panel holds `lanes` rows (outputs) over all columns, lane after lane, so that one register has
// the same column of every row of the panel and a product never adds across a register. The last
// panel's missing rows are zeros.
//
//   f32, f16, bf16    [columns][lanes] elements
//   block types       codes: for every 32 columns `bits` registers of 4 * lanes bytes, see codes.h;
//                     then at records_offset, for every file block, the scales: each f16 of the
//                     block as [lanes], then each byte as [lanes]
//   expanded types    [file blocks][lanes] blocks as they are; a product expands them to codes of 8
//                     bits and two f32 scales for every 32 columns
//
// A panel is as large as its rows in the file, but for the last bytes to a multiple of 4 * lanes, a
// register.
#pragma once

#include <stdint.h>

#include "backend/cpu/kernels/products/tile_scratch.h"
#include "base/inline.h"

namespace plait::cpu {

// The numbers of plait::DType, whose header brings the standard library along.
enum class Format : uint8_t {
    f32,
    f16,
    bf16,
    i32,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    iq2_xxs,
    iq2_xs,
    iq2_s,
    iq3_xxs,
    iq3_s,
    iq1_s,
    iq1_m,
    tq1_0,
    tq2_0,
    nvfp4,
    q1_0,
    q2_0,
};

PLAIT_INLINE bool is_float(Format format) { return format <= Format::bf16; }
PLAIT_INLINE bool is_expanded(Format format) { return format >= Format::iq2_xxs; }

struct PackedWeight {
    const unsigned char* data;  // 64-byte aligned
    Format format;
    uint8_t flip;            // 8-bit codes are stored xor this: 0x80 makes them unsigned
    uint8_t tiles;           // products of many rows may use AMX, see tile_product.h
    uint8_t pairs;           // BF16 is multiplied two columns at a time, see float_product.h
    int32_t lanes;           // rows of a panel
    int64_t rows;            // outputs of one matrix
    int64_t columns;         // inputs
    int64_t matrices;        // experts; 1 for a plain matrix
    int64_t records_offset;  // into a panel
    int64_t panel_bytes;
    int64_t matrix_bytes;

    PLAIT_INLINE_MEMBER int64_t panels() const { return (rows + lanes - 1) / lanes; }
    // Bytes of a panel as a product streams it.
    PLAIT_INLINE_MEMBER int64_t product_panel_bytes() const {
        return is_expanded(format) ? columns / 4 * 5 * lanes : panel_bytes;
    }
    // Bytes of a row of activations: f32, or the words of quantize_rows.
    PLAIT_INLINE_MEMBER int64_t input_bytes() const {
        return is_float(format) ? columns * 4 : columns / 32 * 40;
    }
};

// Rows that a register tile takes at once, at most.
constexpr int64_t kTileRows = 8;

constexpr int64_t kKiB = 1024;
constexpr int64_t kTaskBytes = 256 * kKiB;  // of panels, unless one is larger

PLAIT_INLINE int64_t clamp_to(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

// Whether a product of n rows widens F16 to f32 first, see widened_product.h; how many panels at a
// time, and the bytes of each. Panels of 8 lanes gain nothing.
PLAIT_INLINE bool may_widen(const PackedWeight& weight) {
    return weight.format == Format::f16 && weight.lanes == 16;
}
PLAIT_INLINE bool widens(const PackedWeight& weight, int64_t n) {
    return may_widen(weight) && n > 4 * kTileRows;
}
PLAIT_INLINE int64_t widened_panel_bytes(const PackedWeight& weight) {
    return weight.columns * weight.lanes * 4;
}
PLAIT_INLINE int64_t widened_panels(const PackedWeight& weight) {
    return clamp_to(kTaskBytes / widened_panel_bytes(weight), 2, 64);
}

// A product of n rows with each of `matrices`, in tasks of some panels by some rows. A task's
// weights stay in the second level cache while its rows pass by; few rows leave many small tasks, to
// share the streaming.
struct ProductCut {
    int64_t panels, rows;  // of a task
    int64_t panel_tasks, row_tasks;
};

// What is unpacked of a panel serves every row of a task, and what is laid out of the rows every
// panel: both as many as leave work for many threads.
PLAIT_INLINE ProductCut cut_tiles(int64_t panels, int64_t n, int64_t matrices) {
    ProductCut cut;
    cut.panels = clamp_to(panels, 1, kPassPanels);
    cut.rows = kPassRows;
    const auto tasks = [&] {
        cut.panel_tasks = (panels + cut.panels - 1) / cut.panels;
        cut.row_tasks = (n + cut.rows - 1) / cut.rows;
        return cut.panel_tasks * cut.row_tasks * matrices;
    };
    while (tasks() < 32 && cut.panels > 4) cut.panels /= 2;
    while (tasks() < 32 && cut.rows > 4 * kTileHigh && n > cut.rows / 2) cut.rows /= 2;
    return cut;
}

PLAIT_INLINE ProductCut cut_product(const PackedWeight& weight, int64_t n, int64_t matrices = 1) {
    if (weight.tiles && n >= kTiledRows) return cut_tiles(weight.panels(), n, matrices);
    const bool expanded = is_expanded(weight.format);
    const int64_t panel_bytes = weight.product_panel_bytes();
    const int64_t bytes = panel_bytes * weight.panels() * matrices;
    ProductCut cut;
    const int64_t target = n <= kTileRows       ? clamp_to(bytes / 64, 32 * kKiB, kTaskBytes)
                           : n <= 4 * kTileRows ? clamp_to(bytes / 64, 32 * kKiB, 64 * kKiB)
                                                : clamp_to(bytes / 16, 32 * kKiB, kTaskBytes);
    // Kernels take up to three panels at once, of floats four where rows are few or high.
    const bool four = is_float(weight.format) && (n <= 3 || weight.lanes == 16);
    const int64_t together = weight.panels() <= 64 || expanded ? 1 : four ? 4 : 3;
    cut.panels = clamp_to(target / panel_bytes / together * together, together, weight.panels());
    // Rows are rounded to BF16 once for a task's panels.
    if (weight.pairs && n > 4 * kTileRows) cut.panels = clamp_to(16, 1, weight.panels());
    cut.panel_tasks = (weight.panels() + cut.panels - 1) / cut.panels;
    // What was expanded or widened serves more rows.
    cut.rows = n <= kTileRows ? kTileRows
                              : (expanded            ? 32
                                 : widens(weight, n) ? 16
                                                     : 8) *
                                    kTileRows;
    const int64_t side_by_side = cut.panel_tasks * matrices;
    while (cut.rows > 2 * kTileRows && side_by_side * ((n + cut.rows - 1) / cut.rows) < 32)
        cut.rows /= 2;
    cut.row_tasks = (n + cut.rows - 1) / cut.rows;
    return cut;
}

// Working memory of a product on one thread: a tile of quantised rows and up to two sums per 32
// columns of each, or of rows in BF16; and a task's panels, if they are expanded or widened.
PLAIT_INLINE int64_t product_scratch_bytes(const PackedWeight& weight) {
    const int64_t panel = weight.product_panel_bytes();
    const int64_t expanded = is_expanded(weight.format) ? (panel > kTaskBytes ? panel : kTaskBytes)
                             : may_widen(weight)
                                 ? widened_panels(weight) * widened_panel_bytes(weight)
                                 : 0;
    const int64_t bytes = expanded + kTileRows * 2 * (weight.columns + 1) + 256;
    const auto tiles = static_cast<int64_t>(sizeof(TileScratch));
    return weight.tiles && tiles > bytes ? tiles : bytes;
}

}  // namespace plait::cpu
