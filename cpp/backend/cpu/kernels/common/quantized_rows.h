// The format of quantised activation rows, and the arguments of the kernels that write it.
#pragma once

#include "backend/cpu/kernels/common/frame.h"

namespace plait::cpu {

// Quantises rows to 8 bits, with a scale for every 32 columns.
//
// Rows are stored in groups of kRowGroup (the last group has the remainder), in the order in which
// a product's register tile reads them. A group of m rows has 40 bytes for every 32 columns of a
// row:
//   int8  codes[columns / 32][m][32]    x * 127 / max, rounded; max: largest magnitude of the 32
//   f32   scales[columns / 32][m]       max / 127; NaN if one of the 32 is not finite
//   i16   sums[columns / 32][m][2]      sums of 16 codes
struct QuantizeRowsArgs {
    Ref x, y;  // f32 [rows, columns] -> [rows, columns / 32 * 10 words]
    Extent extent;
    int64_t fixed_rows;
    int64_t rows_per_item;  // rows of `columns` elements in one row of the extent
    int64_t columns;
};

constexpr int64_t kRowGroup = 8;

// The place of a quantised row. Its blocks are `step` blocks apart.
struct QuantizedRow {
    int8_t* codes;
    float* scales;
    int16_t* sums;
    int64_t step;  // rows of its group

    PLAIT_INLINE_MEMBER int8_t* block_codes(int64_t b) const { return codes + 32 * step * b; }
    PLAIT_INLINE_MEMBER float* block_scale(int64_t b) const { return scales + step * b; }
    PLAIT_INLINE_MEMBER int16_t* block_sums(int64_t b) const { return sums + 2 * step * b; }
};

// Row number `row` of the n quantised rows in `all`.
PLAIT_INLINE QuantizedRow quantized_row(unsigned char* all, int64_t n, int64_t columns,
                                        int64_t row) {
    const int64_t first = row / kRowGroup * kRowGroup, lane = row - first;
    const int64_t step = n - first < kRowGroup ? n - first : kRowGroup;
    unsigned char* group = all + first * (columns / 32 * 40);
    return {reinterpret_cast<int8_t*>(group) + 32 * lane,
            reinterpret_cast<float*>(group + step * columns) + lane,
            reinterpret_cast<int16_t*>(group + step * (columns + columns / 8)) + 2 * lane, step};
}

// Rounds rows to BF16, for products in tiles. With two parts, the second has what the rounding left,
// rounded too, and the first is not infinite: an infinite x is multiplied by the upper bits of a
// weight alone, as the lower bits may be zero.
//
// Rows are stored in strips of kStripColumns columns, each with all rows one after the other: a
// product reads strip after strip, and rows that are a power of two apart would compete for few sets
// of the cache. A strip has tiles of kTileRows (the last tile has the remainder), and its last 32
// columns are filled up with zeros. A tile of m rows is
//   bf16  [parts][columns / 32][m][32]
struct RoundRowsArgs : QuantizeRowsArgs {  // y: [rows, parts * ceil(columns / 32) * 16 words]
    int32_t parts;
};

constexpr int64_t kTileRows = 16, kStripColumns = 256;

// The place of a rounded row.
struct RoundedRow {
    static constexpr int64_t kSteps = kStripColumns / 32;

    uint16_t* all;
    int64_t rows, steps;  // of all
    int64_t parts;
    int64_t tile_first, tile_rows;  // first row of the row's tile, and their number
    int64_t lane;                   // of the row in its tile

    // Columns [32 k, 32 k + 32) of a part.
    PLAIT_INLINE_MEMBER uint16_t* at(int64_t part, int64_t k) const {
        const int64_t first = k / kSteps * kSteps;
        const int64_t of_strip = steps - first < kSteps ? steps - first : kSteps;
        const int64_t of_tile = (part * of_strip + k - first) * tile_rows + lane;
        return all + (parts * (first * rows + tile_first * of_strip) + of_tile) * 32;
    }
};

// Row number `row` of the n rounded rows in `all`.
PLAIT_INLINE RoundedRow rounded_row(unsigned char* all, int64_t n, int64_t columns, int parts,
                                    int64_t row) {
    const int64_t first = row / kTileRows * kTileRows;
    return {reinterpret_cast<uint16_t*>(all),
            n,
            (columns + 31) / 32,
            parts,
            first,
            n - first < kTileRows ? n - first : kTileRows,
            row - first};
}

// A gate whose result is quantised.
struct GateQuantizeArgs {
    Ref g, up, y;  // [rows, columns] f32; y: the words of quantize_rows
    Activation activation;
    Extent extent;
    int64_t fixed_rows;
    int64_t rows_per_item;  // rows of `columns` elements in one row of the extent
    int64_t columns;
};

}  // namespace plait::cpu
