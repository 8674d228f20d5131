#include "backend/cpu/ops/operands.h"

#include "base/error.h"

namespace plait::cpu {

// The kernels have their own enums with the same values.
static_assert(static_cast<int>(Extent::fixed) == 0 && static_cast<int>(Extent::tokens) == 1);
static_assert(static_cast<int>(Extent::outputs) == 2 && static_cast<int>(Extent::moves) == 3);

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    const HeadLayout layout = head_layout(storage, heads);
    return {layout.dtype, layout.head_elements, layout.head_bytes, layout.row_bytes};
}

StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), storage.shape[1]};
}

}  // namespace plait::cpu
