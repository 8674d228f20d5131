// The kernels of one instruction set.
#pragma once

#include "backend/cpu/kernels/frame.h"
#include "backend/cpu/kernels/list.h"

namespace plait::cpu {

struct Kernels {
#define PLAIT_MEMBER(name) Kernel name;
    PLAIT_KERNELS(PLAIT_MEMBER)
#undef PLAIT_MEMBER
};

// Defined where the instruction set was compiled in: always scalar; avx2 and avx512 on x86-64.
// amx is avx512, but for what tile_product.h declares.
namespace scalar {
const Kernels& kernels();
}
namespace avx2 {
const Kernels& kernels();
}
namespace avx512 {
const Kernels& kernels();
}

}  // namespace plait::cpu
