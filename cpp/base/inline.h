// For small functions in headers that kernels include. Kernels are compiled once per instruction
// set; an ordinary inline function could leave the linker with the copy that uses the newest one.
#pragma once

#define PLAIT_INLINE static inline __attribute__((always_inline, unused))
#define PLAIT_INLINE_MEMBER inline __attribute__((always_inline))
