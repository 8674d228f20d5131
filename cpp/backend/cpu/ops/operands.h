// Kernel arguments that many ops share.
#pragma once

#include "backend/cpu/kernels/attention/cache_layout.h"
#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/common/vectors.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/ops/bind.h"
#include "backend/shared/operands.h"
#include "base/error.h"

namespace plait::cpu {

// The kernels have their own enum with the same values.
static_assert(static_cast<int>(Extent::fixed) == 0 && static_cast<int>(Extent::tokens) == 1);
static_assert(static_cast<int>(Extent::outputs) == 2 && static_cast<int>(Extent::moves) == 3);
inline uint8_t extent_of(const CpuNode& node) { return static_cast<uint8_t>(node.extent); }

// The vectors along the last axis of `shape`, which has as many rows as the node.
inline Vectors vectors_of(const CpuNode& node, const Shape& shape) {
    const int64_t all = shape.elements() / shape[-1];
    return {extent_of(node), shape[0], all / shape[0], shape[-1]};
}

// The layout of a cache's rows if each holds `heads` heads.
inline CacheLayout cache_layout(const TensorType& storage, int64_t heads) {
    const HeadLayout layout = head_layout(storage, heads);
    return {layout.dtype, layout.head_elements, layout.head_bytes, layout.row_bytes};
}

inline StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), storage.shape[1]};
}

}  // namespace plait::cpu
