#include "backend/cpu/ops/operands.h"

#include "base/error.h"

namespace plait::cpu {

// The kernels have their own enums with the same values.
static_assert(static_cast<int>(DType::f32) == kCacheF32);
static_assert(static_cast<int>(DType::f16) == kCacheF16);
static_assert(static_cast<int>(DType::bf16) == kCacheBF16);
static_assert(static_cast<int>(DType::q8_0) == kCacheQ8_0);
static_assert(static_cast<int>(DType::q4_0) == kCacheQ4_0);
static_assert(static_cast<int>(DType::q4_1) == kCacheQ4_1);
static_assert(static_cast<int>(DType::q5_0) == kCacheQ5_0);
static_assert(static_cast<int>(DType::q5_1) == kCacheQ5_1);
static_assert(static_cast<int>(DType::iq4_nl) == kCacheIQ4_NL);
static_assert(static_cast<int>(Extent::fixed) == 0 && static_cast<int>(Extent::tokens) == 1);
static_assert(static_cast<int>(Extent::outputs) == 2 && static_cast<int>(Extent::moves) == 3);

CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    const HeadLayout layout = head_layout(storage, heads);
    return {static_cast<uint8_t>(layout.dtype), layout.head_elements, layout.head_bytes,
            layout.row_bytes};
}

StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), storage.shape[1]};
}

}  // namespace plait::cpu
