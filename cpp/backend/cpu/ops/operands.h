// Kernel arguments that many ops share.
#pragma once

#include "backend/cpu/kernels/attention/cache_layout.h"
#include "backend/cpu/kernels/attention/rope.h"
#include "backend/cpu/kernels/common/vectors.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

inline uint8_t extent_of(const Node& node) { return static_cast<uint8_t>(node.extent); }
inline int64_t row_elements(const TensorType& type) {
    return type.shape[0] == 0 ? 0 : type.shape.elements() / type.shape[0];
}

// The vectors along the last axis of `shape`, which has as many rows as the node.
inline Vectors vectors_of(const Node& node, const Shape& shape) {
    const int64_t all = shape.elements() / shape[-1];
    return {extent_of(node), shape[0], all / shape[0], shape[-1]};
}

// The layout of a cache's rows if each holds `heads` heads.
CacheLayout cache_layout(const TensorType& storage, int64_t heads);

RopeFrequencies frequencies(const Rope& rope);

StateArgs state_args(const ops::States& states, const Binder& binder);

}  // namespace plait::cpu
