// Kernel arguments that many ops share.
#pragma once

#include "backend/cpu/kernels/attention/cache_layout.h"
#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/common/vectors.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/ops/bind.h"
#include "backend/shared/operands.h"

namespace plait::cpu {

inline uint8_t extent_of(const CpuNode& node) { return static_cast<uint8_t>(node.extent); }

// The vectors along the last axis of `shape`, which has as many rows as the node.
inline Vectors vectors_of(const CpuNode& node, const Shape& shape) {
    const int64_t all = shape.elements() / shape[-1];
    return {extent_of(node), shape[0], all / shape[0], shape[-1]};
}

// The layout of a cache's rows if each holds `heads` heads.
CacheLayout cache_layout(const TensorType& storage, int64_t heads);

StateArgs state_args(const ops::States& states, const Binder& binder);

}  // namespace plait::cpu
