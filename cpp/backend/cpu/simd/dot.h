// Bytes and Sums: what integer products are written over, for the instruction set PLAIT_ISA.
//
//   Bytes     four bytes in every lane of an F32: load, set (all alike), four (the same four in
//             every lane), & and |, left and right (by whole bits; what crosses from a neighbour is
//             masked by the caller), lookup (a nibble in every byte picks from 16 bytes)
//   Sums      a 32-bit sum in every lane. add<kSigns, kGroups>(codes, a, g) adds the products of the
//             four bytes of a lane, codes at most 32767 / 254 / kGroups, a in [-127, 127]; g counts
//             the calls, kGroups divides their number. value() is the sum plus kSumsBase, exactly.
//   kApartFrom                  rows from which Signs::kApart takes less time than kMoved
//   kUnsignedDot                the instruction multiplies unsigned by signed bytes: 8-bit codes
//                               have 128 added
//   store_codes(x, to, sums)    32 values, rounded to nearest even, in [-127, 127], as signed bytes;
//                               the sum of either half
#pragma once

#include "backend/cpu/simd/simd.h"

namespace plait::cpu::PLAIT_ISA {

// How Sums take the signs of codes.
enum class Signs {
    kNone,   // the codes have none
    kMoved,  // to the other factor
    kApart,  // a sum is too high by the sum that the same codes have with zeros
};

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
