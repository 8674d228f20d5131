// The kernels of AVX-512, with products in tiles.
#include "backend/cpu/kernels/common/table.h"

namespace plait::cpu {

namespace avx512 {
const Kernels& kernels();
}

namespace amx {

extern const TileProduct kBlockProduct;  // many rows with block types
extern const TileProduct kFloatProduct;  // any number of rows with F16 and BF16 weights

namespace {

const TileProduct* tiles(DType weights) {
    if (weights == DType::f32) return nullptr;
    return is_float(weights) ? &kFloatProduct : &kBlockProduct;
}

}  // namespace

const Kernels& kernels() {
    static const Kernels table = [] {
        Kernels kernels = avx512::kernels();
        kernels.tiles = tiles;
        return kernels;
    }();
    return table;
}

}  // namespace amx
}  // namespace plait::cpu
