// What most bind() functions ask about a node.
#pragma once

#include "backend/cpu/kernels/recurrence/recurrence.h"
#include "backend/cpu/kernels/rows/cache_layout.h"
#include "backend/cpu/kernels/rows/rope.h"
#include "backend/cpu/kernels/vectors.h"
#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

inline NodeId id_of(const Node& node, const Binder& binder) {
    return static_cast<NodeId>(&node - binder.graph().nodes().data());
}

// Where a float operand lives: a weight, perhaps reshaped, or a value.
Ref operand(NodeId id, Binder& binder);

inline uint8_t extent_of(const Node& node) { return static_cast<uint8_t>(node.extent); }
inline int64_t row_elements(const TensorType& type) {
    return type.shape[0] == 0 ? 0 : type.shape.elements() / type.shape[0];
}

// The vectors of the last axis of `shape`, which has as many rows as the node.
inline Vectors vectors_of(const Node& node, const Shape& shape) {
    const int64_t all = shape.elements() / shape[-1];
    return {extent_of(node), shape[0], all / shape[0], shape[-1]};
}

// How a storage's rows lie when they hold `heads` heads.
CacheLayout cache_layout(const TensorType& storage, int64_t heads);

RopeFrequencies frequencies(const Rope& rope);

// The states that a recurrent node goes on from: its last four inputs.
StateArgs state_args(const Node& node, Binder& binder);

}  // namespace plait::cpu
