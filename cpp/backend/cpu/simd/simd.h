// F32, a register of floats of the instruction set PLAIT_ISA, and functions on it. Kernels are
// written once over this header.
//
// A file that is compiled once per instruction set includes only plain C headers and headers of
// PLAIT_INLINE functions: the linker could keep the copy of a standard template that was compiled
// for the newest instruction set (numpy#25274, botan#5260).
//
// simd/<isa>/registers.h defines:
//   F32::kLanes, kRegisters              floats of a register, number of registers
//   set, set_f16                         one value in every lane
//   load, load_f16, load_bf16, load_i8   from memory, any alignment. With a count n < kLanes, the
//   store, store_f16, store_bf16         other lanes are read as zero and not written
//   load_nibbles(p, i)                   values i .. i + kLanes - 1 of the 32 nibbles of 16 bytes,
//                                        which are the low nibbles first, then the high ones
//   load_levels(p, i, levels)            the same, each replaced by levels[nibble]
//   fma(a, b, c)                         a * b + c, rounded once
//   set_of<n>(x, i)                      x[i] in every lane. x has n floats, and i is a constant to
//                                        the compiler
//   max(a, b), min(a, b)                 b if either is NaN
//   select_less(a, b, yes, no)           a < b ? yes : no
//   select_bits(bits, yes, no)           yes in lanes whose bit is set
//   sum(a), reduce_max(a)                of all lanes, in a fixed tree
//   larger_bits(a, b)                    orders non-negative floats by their bit patterns, so
//   reduce_larger_bits(a)                NaN > inf > finite. The second returns the bits of the
//                                        largest lane
//   any_less(a, b)                       true if a < b in any lane
//   exponent_of_low_bits(a)              the float whose exponent field is the low bits of a's
//                                        significand: of the sum of 1.5 * 2^23 and n + 127, it is 2^n
//   sums_of_four(r), join(r)             sums of several registers in the tree of sum().
//                                        sums_of_four() reduces kLanes / 4 registers to four lanes
//                                        each; join() reduces four of its results, so that lane i
//                                        has the sum of the i / 4-th register of result i % 4
//   transpose(r)                         transposes a square of kLanes registers
//   exp exp2 tanh sigmoid                errors: 2 ulp for exp and exp2, below 5e-7 (absolute) for
//   erfc_positive log1p_unit             the others
//   exp_nonpositive(x)                   exp(x) for x <= 0; may be 0 where that is below 2^-126
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/simd/isa_table.h"

// The instruction set's own header: PLAIT_SIMD names its folder.
// clang-format off
#define PLAIT_QUOTE_TOKENS(tokens) #tokens
#define PLAIT_QUOTE(tokens) PLAIT_QUOTE_TOKENS(tokens)
#define PLAIT_SIMD_HEADER(file) PLAIT_QUOTE(backend/cpu/simd/PLAIT_SIMD/file)
// clang-format on
#include PLAIT_SIMD_HEADER(registers.h)

namespace plait::cpu::PLAIT_ISA {

constexpr IsaInfo kRow = isa_row(PLAIT_QUOTE(PLAIT_ISA));

PLAIT_INLINE F32 sigmoid(F32 x) {
    const F32 one = F32::set(1.0f);
    return one / (one + exp(negate(x)));
}

}  // namespace plait::cpu::PLAIT_ISA
