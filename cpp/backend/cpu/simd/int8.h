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

}  // namespace plait::cpu::PLAIT_ISA

#if defined(PLAIT_ISA_AVX512)
#include "backend/cpu/simd/int8_avx512.h"
#elif defined(PLAIT_ISA_AVX2)
#include "backend/cpu/simd/int8_avx2.h"
#else
#include "backend/cpu/simd/int8_scalar.h"
#endif
