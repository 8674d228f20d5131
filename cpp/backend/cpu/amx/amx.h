// The products of the instruction set `amx`.
#pragma once

namespace plait::cpu {

struct TileProduct;

namespace amx {

extern const TileProduct kBlockProduct;  // many rows with block types
extern const TileProduct kFloatProduct;  // any number of rows with F16 and BF16 weights

}  // namespace amx
}  // namespace plait::cpu
