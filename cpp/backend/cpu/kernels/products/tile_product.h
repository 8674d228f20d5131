// Products of many rows with block types on AMX. Each sum of a step is an integer, as VNNI makes it,
// and what follows are the same operations on floats in the same order, so every output has the bits
// that it has on avx512.
#pragma once

#include "backend/cpu/kernels/products/product.h"

namespace plait::cpu::amx {

// As multiply() of product.h, for formats of blocks. Scratch: a TileScratch.
void multiply(const Product& product, int64_t begin, int64_t end, unsigned char* scratch);

}  // namespace plait::cpu::amx
