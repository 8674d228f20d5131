// The kernels of AVX-512, with products and attention in tiles.
#include "backend/cpu/kernels/common/table.h"

namespace plait::cpu {

namespace avx512 {
const Kernels& kernels();
}

namespace amx {

extern const TileProduct kBlockProduct;  // many rows with block types
extern const TileProduct kFloatProduct;  // any number of rows with F16 and BF16 weights

#define PLAIT_DECLARE(name, Args, tasks)                                                 \
    void name(const Args& args, const Frame& frame, const Worker& worker, int64_t begin, \
              int64_t end);
PLAIT_ATTEND_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

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
#define PLAIT_REPLACE(name, Args, tasks) kernels.name.run = kErased<name>;
        PLAIT_ATTEND_KERNELS(PLAIT_REPLACE)
#undef PLAIT_REPLACE
        return kernels;
    }();
    return table;
}

}  // namespace amx
}  // namespace plait::cpu
