// Binding a segment's nodes to kernels: which of them are work for a device, and which a backend has
// a kernel for.
#pragma once

#include <type_traits>
#include <utility>

#include "graph/graph.h"

namespace plait {

// Weights, caches, inputs and views of them exist without being computed; edits happen between two
// executables.
template <typename Op>
constexpr bool is_computed =
    !is_any_of<Op, WeightOp, StorageOp, InputOp, ReshapeOp, WeightRowOp, EditOp>;

inline bool computes(const Node& node) {
    return std::visit([]<typename Op>(const Op&) { return is_computed<Op>; }, node.op);
}

// What the bind() returns that takes every operation; a backend's own return nothing.
struct NoKernel {};

template <typename Binder>
bool can_bind(const Node& node) {
    return std::visit(
        []<typename Op>(const Op& op) {
            if constexpr (is_computed<Op>) {
                using Bound =
                    decltype(bind(op, std::declval<const Node&>(), std::declval<Binder&>()));
                return !std::is_same_v<Bound, NoKernel>;
            }
            return true;
        },
        node.op);
}

// bind(op, node, binder), the backend's own, where there is anything to bind.
template <typename Binder>
void bind_computed(const Node& node, Binder& binder) {
    std::visit(
        [&]<typename Op>(const Op& op) {
            if constexpr (is_computed<Op>) bind(op, node, binder);
        },
        node.op);
}

}  // namespace plait
