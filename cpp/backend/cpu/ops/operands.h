// Kernel arguments that many ops share.
#pragma once

#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/common/vectors.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/ops/bind.h"
#include "backend/shared/operands.h"
#include "base/error.h"

namespace plait::cpu {

// The vectors along the last axis of `shape`, which has as many rows as the node.
inline Vectors vectors_of(const CpuNode& node, const Shape& shape) {
    const int64_t all = shape.elements() / shape[-1];
    return {node.extent, shape[0], all / shape[0], shape[-1]};
}

inline StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), storage.shape[1]};
}

}  // namespace plait::cpu
