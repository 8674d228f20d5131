// The layout of packed weight matrices.
//
// A panel holds `lanes` rows (outputs) over all columns, one column of all rows after the other, so
// that one register has the same column of every row of the panel and a product never adds across a
// register. Rows that the last panel lacks are zeros.
//
//   f32, f16, bf16    [columns][lanes] elements, or [columns / 4][lanes][4] for products of BF16
//                     matrices; columns that the last four lack are zeros
//   block types       for every file block its scales, then its codes. Scales: each f16 as [lanes],
//                     then each byte as [lanes]. Codes: for every 32 columns `bits` registers of
//                     4 * lanes bytes, see codes.h. So a panel is read as one stream
//                     (docs/decisions/0057)
//   irregular types   [file blocks][lanes] blocks as in the file; or, if the instruction set packs
//                     words, for every file block the f16 `scale` as [lanes] if it has one, then the
//                     other words of 4 bytes as [words][lanes]. A product expands them to 8-bit
//                     codes and two f32 scales for every 32 columns
//
// A panel is as large as its rows in the file, rounded up to a multiple of 4 * lanes bytes (a
// register).
#pragma once

#include <stdint.h>

#include "backend/cpu/simd/isa_table.h"
#include "base/inline.h"
#include "tensor/dtype_enum.h"

namespace plait::cpu {

struct TileProduct;

// How a product reads its rows of activations.
enum class RowForm : uint8_t {
    f32,
    bytes,     // as quantize_rows writes them
    bf16,      // as round_rows writes them
    two_bf16,  // the same, with what the rounding left as a second part
};

// True if products expand weights of this type first (expanded_product.h).
PLAIT_INLINE constexpr bool is_irregular(DType dtype) {
    return is_expanded(dtype) && dtype <= DType::tq1_0;
}

PLAIT_INLINE RowForm row_form(const IsaInfo& isa, DType weight) {
    if (is_block_type(weight)) return RowForm::bytes;
    if (!isa.has_tiles || weight == DType::f32 || weight == DType::i32) return RowForm::f32;
    return weight == DType::bf16 ? RowForm::bf16 : RowForm::two_bf16;
}

PLAIT_INLINE int32_t parts_of(RowForm form) { return form == RowForm::two_bf16 ? 2 : 1; }

PLAIT_INLINE int64_t bytes_of_row(RowForm form, int64_t columns) {
    if (form == RowForm::f32) return columns * 4;
    if (form == RowForm::bytes) return columns / 32 * 40;
    return parts_of(form) * ((columns + 31) / 32) * 64;
}

struct PackedWeight {
    const unsigned char* data;  // 64-byte aligned
    const IsaInfo* isa;         // the instruction set that it is packed for
    const TileProduct* tiles;   // null if the instruction set has none for this type
    DType format;
    int32_t lanes;     // rows of a panel
    int64_t rows;      // outputs of one matrix
    int64_t columns;   // inputs
    int64_t matrices;  // experts or heads; 1 for a plain matrix
    int64_t panel_bytes;
    int64_t matrix_bytes;
    bool are_streams_read_ahead;  // reads_streams_ahead() of isa.h

    PLAIT_INLINE_MEMBER int64_t panels() const { return (rows + lanes - 1) / lanes; }
    // Q8_0 codes are stored xor this: 0x80 adds 128, which makes them unsigned.
    PLAIT_INLINE_MEMBER uint8_t code_flip() const { return isa->has_unsigned_byte_dot ? 0x80 : 0; }
    // BF16 weights are multiplied by rows that are rounded to BF16, two or four columns at a time.
    PLAIT_INLINE_MEMBER bool uses_bf16_dot() const {
        return format == DType::bf16 && isa->bf16_dot_is_fast;
    }
    PLAIT_INLINE_MEMBER bool uses_bf16_matrices() const {
        return uses_bf16_dot() && isa->lane_bytes == 8;
    }
    // The index in a panel of a float element.
    PLAIT_INLINE_MEMBER int64_t element(int64_t column, int64_t lane) const {
        if (!uses_bf16_matrices()) return column * lanes + lane;
        return (column / 4 * lanes + lane) * 4 + column % 4;
    }
    // Bytes of a panel as a product reads it.
    PLAIT_INLINE_MEMBER int64_t product_panel_bytes() const {
        return is_irregular(format) ? columns / 4 * 5 * lanes : panel_bytes;
    }
    // Bytes of a row of activations.
    PLAIT_INLINE_MEMBER int64_t input_bytes() const {
        return bytes_of_row(row_form(*isa, format), columns);
    }
};

}  // namespace plait::cpu
