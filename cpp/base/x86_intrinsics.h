// The intrinsics of x86 processors.
#pragma once

// GCC warns about the undefined operands of AVX-512 intrinsics (gcc.gnu.org/PR105593). The warnings
// are off where <immintrin.h> is first included, so every file of cpp/ includes it through this
// header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
