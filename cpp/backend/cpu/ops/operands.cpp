#include "backend/cpu/ops/operands.h"

#include "base/error.h"

namespace plait::cpu {

// The kernels have their own enums with the same values.
static_assert(static_cast<int>(Extent::fixed) == 0 && static_cast<int>(Extent::tokens) == 1);
static_assert(static_cast<int>(Extent::outputs) == 2 && static_cast<int>(Extent::moves) == 3);

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
<<<<<<< HEAD
    const HeadLayout layout = head_layout(storage, heads);
    return {static_cast<uint8_t>(layout.dtype), layout.head_elements, layout.head_bytes,
            layout.row_bytes};
=======
    PLAIT_CHECK(storage.shape.rank == 2 && heads > 0 && storage.shape[1] % heads == 0);
    CacheLayout layout{};
    layout.dtype = storage.dtype;
    layout.head_elements = storage.shape[1] / heads;
    PLAIT_CHECK(layout.head_elements % info(storage.dtype).block_elements == 0);
    const auto bytes = [&](int64_t elements) {
        return static_cast<int64_t>(row_bytes(storage.dtype, static_cast<uint64_t>(elements)));
    };
    layout.head_bytes = bytes(layout.head_elements);
    layout.row_bytes = bytes(storage.shape[1]);
    return layout;
}

// YaRN's ramp runs between the pairs that turn beta_fast and beta_slow times over the original
// context.
RopeFrequencies frequencies(const Rope& rope) {
    RopeFrequencies result{rope.base, rope.scale, rope.extrapolation, 0.0, 0.0, rope.n_rot};
    if (rope.extrapolation == 0.0) return result;
    const auto pair_of = [&](double turns) {
        return rope.n_rot *
               std::log(static_cast<double>(rope.n_ctx_original) / (turns * 2 * std::numbers::pi)) /
               (2 * std::log(rope.base));
    };
    result.low = std::max(0.0, std::floor(pair_of(rope.beta_fast)));
    result.high = std::min(rope.n_rot - 1.0, std::ceil(pair_of(rope.beta_slow)));
    return result;
>>>>>>> fin-kernels
}

StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), storage.shape[1]};
}

}  // namespace plait::cpu
