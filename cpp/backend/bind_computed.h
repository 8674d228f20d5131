// Binding a segment's nodes to kernels: which of them are work for a device.
#pragma once

#include "graph/graph.h"

namespace plait {

// Weights, caches, inputs and views of them exist without being computed; edits happen between two
// executables.
template <typename Op>
constexpr bool is_computed =
    !is_any_of<Op, WeightOp, StorageOp, InputOp, ReshapeOp, WeightRowOp, EditOp>;

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
