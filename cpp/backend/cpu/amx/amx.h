// The products of the instruction set `amx`.
#pragma once

#include "backend/cpu/kernels/products/product_cost.h"

namespace plait::cpu::amx {

extern const TileProduct kBlockProduct;  // many rows with block types
extern const TileProduct kFloatProduct;  // any number of rows with F16 and BF16 weights

}  // namespace plait::cpu::amx
