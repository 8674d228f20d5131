// Kernel arguments that many ops share, and the arguments of all kernels.
#pragma once

#include "backend/cpu/kernels/arguments.h"
#include "backend/cpu/ops/bind.h"
#include "backend/shared/operands.h"
#include "base/error.h"

namespace plait::cpu {

// Returns arguments with the result and its rows set; the other fields are zero.
template <typename Args>
Args args_for(const CpuNode& node, const Binder& binder) {
    Args args{};
    args.y = binder.result(node);
    args.extent = node.extent;
    args.fixed_rows = node.type.shape[0];
    return args;
}

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
