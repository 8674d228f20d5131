// Dot products of bytes and of BF16, for the instruction set PLAIT_ISA.
//
// simd/<isa>/dot.h defines:
//   Bytes                   four bytes in every lane of an F32. load, set (one byte everywhere),
//                           four(row, g) (bytes 4 g to 4 g + 3 of the row in every lane, as the
//                           second argument of Sums::add), & and |, left and right (bit shifts;
//                           bits that cross into a neighbouring byte are masked by the caller),
//                           lookup (each byte is a nibble that selects one of 16)
//   kShiftsBytes            true if no bits cross into a neighbouring byte
//   Sums                    a 32-bit sum in every lane. add<kSigns, kGroups>(codes, a, g) adds the
//                           products of the four bytes of a lane. Codes are at most
//                           32767 / 254 / kGroups, a is in [-127, 127]; g counts the calls, whose
//                           number is a multiple of kGroups. value() is the sum plus kSumsBase,
//                           exactly. With kStartsAtOffset, from(x) starts at x instead
//   kMinRowsForInverted     with at least this many rows, Signs::kInverted is faster than kOnFactor
//   kUnsignedDot            true if the instruction multiplies unsigned by signed bytes; 128 is
//                           then added to 8-bit codes
//   store_codes(x, to, sums)
//                           rounds 32 values in [-127, 127] to nearest even and stores them as
//                           signed bytes, and the sums of the two halves
//   DotBF16                 the fastest way to multiply BF16 weights: a class like ColumnBF16
//   SignedBytes             codes as magnitudes and signs, only if unpacks_panels: of(bytes), load and
//                           store (two registers), and Sums::add<kSplit>. Bytes then has of (the
//                           same bytes) and store
//   ByteMatrix, Bf16Matrix  products of matrices, only if lane_bytes is 8; see block_product.h
//   TileShape               the shape of register tiles, in panels by rows, as bench_linear.cpp
//                           measured it:
//     kSharesPrefetches       the tiles of the same panels share the prefetches of the next ones;
//                             otherwise each fetches all of them, with fewer instructions
//     kWideForSlowCodes       wide tiles also for codes that are slow to unpack: there are enough
//                             registers
//     kWidePanels             panels of a wide tile; 1 if high tiles are always better
//     kHighPanels             panels of a high tile, if it has two rows
//     kBlockPanelsOfOneRow    panels of a block type for a single row
//     kReadsPanelsInTurn      but one on processors of AMD, and one of BF16 with many columns
//     kStartsAtOffset         sums start at kSumsBase minus the offsets of the codes, so that these
//                             need not be subtracted; kSumsBase is not 0
//     kFloatRows              max rows of a tile of floats
//     kFloatPanels            panels of a tile of floats
//     kPanelsOfOneRow         panels of F32 for a single row
//     kHalfPanelsOfOneRow     panels of F16 or BF16 for a single row
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// How a dot product of unsigned with signed bytes handles the signs of codes.
enum class Signs {
    kUnsigned,  // codes have no sign
    kOnFactor,  // multiplies the other factor by the sign of the code
    // Inverts the bits of the other factor if the code is negative, which gives -a - 1 instead of
    // -a. The caller subtracts the errors: the dot products of the same codes with zeros.
    kInverted,
    // The same with SignedBytes. The errors were computed when the codes were split.
    kSplit,
};

// Float weights, one column at a time. row() prepares a row of activations, load() reads a column
// of a panel, add() returns y + column * x[0].
struct OneColumn {
    using Input = float;
    static constexpr int kColumns = 1;
    PLAIT_INLINE_MEMBER static const float* row(const float* x, int64_t, unsigned char*) {
        return x;
    }
    PLAIT_INLINE_MEMBER static F32 add(F32 y, F32 column, const float* x) {
        return fma(column, F32::set(*x), y);
    }
};
struct ColumnF32 : OneColumn {
    using Element = float;
    PLAIT_INLINE_MEMBER static F32 load(const float* p) { return F32::load(p); }
};
struct ColumnF16 : OneColumn {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_f16(p); }
};
struct ColumnBF16 : OneColumn {
    using Element = uint16_t;
    PLAIT_INLINE_MEMBER static F32 load(const uint16_t* p) { return F32::load_bf16(p); }
};

// Defined only by instruction sets that multiply matrices.
struct ByteMatrix;
struct Bf16Matrix;
// Defined only by instruction sets that unpack panels.
struct SignedBytes;

}  // namespace plait::cpu::PLAIT_ISA

#include PLAIT_SIMD_HEADER(dot.h)

namespace plait::cpu::PLAIT_ISA {

// The instruction set's row in isa_table.h must agree with the definitions in the folder.
static_assert(kRow.panel_lanes == F32::kLanes);
static_assert(kRow.float_tile_panels == TileShape::kFloatPanels);
static_assert(kRow.has_unsigned_byte_dot == kUnsignedDot);
static_assert(!kRow.bf16_dot_is_fast || kRow.lane_bytes == 8 || DotBF16::kColumns == 2);

constexpr int kRegistersOf32 = 32 / F32::kLanes;

// Quantises 32 values to 8 bits. Writes the codes, their scale, and the sums of the two halves of
// the codes.
PLAIT_INLINE void quantize_block(const F32 (&x)[kRegistersOf32], int8_t* codes, float* scale,
                                 int16_t* sums) {
    F32 largest = abs(x[0]);
    for (int i = 1; i < kRegistersOf32; ++i) largest = larger_bits(largest, abs(x[i]));
    const uint32_t bits = reduce_larger_bits(largest);
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    const bool finite = bits < 0x7f800000;
    // Below 1e-30, 127 / magnitude could overflow; such values count as zero.
    if (!finite || magnitude < 1e-30f) {
        memset(codes, 0, 32);
        *scale = finite ? 0.0f : __builtin_nanf("");
        sums[0] = sums[1] = 0;
        return;
    }
    const F32 inverse = F32::set(127.0f / magnitude);
    F32 scaled[kRegistersOf32];
    for (int i = 0; i < kRegistersOf32; ++i) scaled[i] = x[i] * inverse;
    *scale = magnitude / 127.0f;
    store_codes(scaled, codes, sums);
}

// Quantises a row of n values. `y` is a QuantizedRow of common/quantized_rows.h.
template <class QuantizedRow>
PLAIT_INLINE void quantize_row(const float* x, const QuantizedRow& y, int64_t n) {
    for (int64_t b = 0; b < n / 32; ++b) {
        F32 v[kRegistersOf32];
        for (int i = 0; i < kRegistersOf32; ++i) v[i] = F32::load(x + 32 * b + i * F32::kLanes);
        quantize_block(v, y.block_codes(b), y.block_scale(b), y.block_sums(b));
    }
}

}  // namespace plait::cpu::PLAIT_ISA
