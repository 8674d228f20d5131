// Attributes of functions in headers that kernels include. Kernels are compiled once per
// instruction set. For an ordinary inline function, the linker could keep a copy with instructions
// that the processor lacks.
#pragma once

#define PLAIT_INLINE static inline __attribute__((always_inline, unused))
#define PLAIT_INLINE_MEMBER inline __attribute__((always_inline))
