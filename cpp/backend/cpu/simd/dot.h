// Dot products of bytes and of BF16, for the instruction set PLAIT_ISA.
//
// simd/<isa>/dot.h defines:
//   Bytes                   four bytes in every lane of an F32. load, set (one byte everywhere),
//                           four (the same four bytes in every lane), & and |, left and right
//                           (bit shifts; bits that cross into a neighbouring byte are masked by
//                           the caller), lookup (each byte is a nibble that selects one of 16)
//   Sums                    a 32-bit sum in every lane. add<kSigns, kGroups>(codes, a, g) adds the
//                           products of the four bytes of a lane. Codes are at most
//                           32767 / 254 / kGroups, a is in [-127, 127]; g counts the calls, whose
//                           number is a multiple of kGroups. value() is the sum plus kSumsBase,
//                           exactly
//   kMinRowsForApart        with at least this many rows, Signs::kApart is faster than kMoved
//   kUnsignedDot            true if the instruction multiplies unsigned by signed bytes; 128 is
//                           then added to 8-bit codes
//   store_codes(x, to, sums)
//                           rounds 32 values in [-127, 127] to nearest even and stores them as
//                           signed bytes, and the sums of the two halves
//   DotBF16                 the fastest way to multiply BF16 weights: a class like ColumnBF16
//   TileShape               the shape of register tiles, in panels by rows, as bench_linear.cpp
//                           measured it:
//     kWideForSlowCodes       wide tiles also for codes that are slow to unpack: there are enough
//                             registers
//     kWidePanels             panels of a wide tile
//     kHighPanels             panels of a high tile, if it has two rows
//     kFloatRows              max rows of a tile of floats
//     kFloatPanels            panels of a tile of floats
//     kPanelsOfOneRow         panels of floats for a single row
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// How the sign of a code is applied.
enum class Signs {
    kNone,   // codes are unsigned
    kMoved,  // it is multiplied into the other factor
    kApart,  // approximately: the caller subtracts the sum of the same codes with zeros
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

}  // namespace plait::cpu::PLAIT_ISA

#include PLAIT_SIMD_HEADER(dot.h)
