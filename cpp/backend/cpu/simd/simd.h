// F32: a register of floats, and functions of it, for the instruction set PLAIT_ISA. Kernels are
// written once over this header.
//
// A file that is compiled once per instruction set includes nothing else but plain C headers and
// headers of PLAIT_INLINE functions: a standard template instantiated there could be the copy that
// the linker keeps for everyone (numpy#25274, botan#5260).
//
//   kLanes, kRegisters                      floats in a register; registers there are
//   set, set_f16                            every lane the same
//   load, load_f16, load_bf16, load_i8      from memory, any alignment; with a count n < kLanes the
//   store, store_f16, store_bf16            missing lanes read as zero and are not written
//   load_nibbles(p, i), load_levels(.., t)  from the i-th of 32 nibbles on, the lower ones of 16
//                                           bytes first; for the latter what a table has for them
//   fma(a, b, c)                            a * b + c rounded once
//   max(a, b), min(a, b)                    b where either is NaN
//   select_less(a, b, yes, no)              yes where a < b
//   select_bits(bits, yes, no)              yes where bit `lane` is set
//   sum, reduce_max                         of all lanes, in a fixed tree
//   larger_bits(a, b), reduce_larger_bits   of what has no sign, NaN above infinity above numbers;
//                                           the latter gives the bits
//   any_less(a, b)                          whether a < b in any lane
//   sums_of_four(r), join(r)                sums of registers, several at a time: the first of
//                                           kLanes / 4 registers, four lanes for each; the second
//                                           of four such, so that lane i has the sum of what was
//                                           r[i / 4] of the i % 4-th. In the tree of sum()
//   transpose(r)                            of a square of kLanes registers
//   exp exp2 tanh sigmoid erf log1p_unit    2 ulp for exp and exp2; absolute error under 5e-7 for
//                                           the others
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/inline.h"

// The instruction set's own header: PLAIT_SIMD names its folder.
// clang-format off
#define PLAIT_QUOTE_TOKENS(tokens) #tokens
#define PLAIT_QUOTE(tokens) PLAIT_QUOTE_TOKENS(tokens)
#define PLAIT_SIMD_HEADER(file) PLAIT_QUOTE(backend/cpu/simd/PLAIT_SIMD/file)
// clang-format on
#include PLAIT_SIMD_HEADER(registers.h)

namespace plait::cpu::PLAIT_ISA {

PLAIT_INLINE F32 sigmoid(F32 x) {
    const F32 one = F32::set(1.0f);
    return one / (one + exp(negate(x)));
}

}  // namespace plait::cpu::PLAIT_ISA
