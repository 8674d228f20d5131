// Binding the nodes of a segment to a backend's kernels.
#pragma once

#include <span>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait {

// Calls the backend's bind(op, node, binder) for each node that a kernel computes.
template <typename OpVariant, typename Binder>
void bind_nodes(std::span<const BasicNode<OpVariant>> nodes, std::span<const NodeId> segment,
                Binder& binder) {
    for (const NodeId id : segment) {
        const BasicNode<OpVariant>& node = nodes[id];
        std::visit(
            [&]<OpType T>(const T& op) {
                if constexpr (T::kInfo.kind == OpKind::kernel) bind(op, node, binder);
            },
            node.op);
    }
}

[[noreturn]] inline void no_kernel(std::string_view device, const Node& node) {
    throw UnsupportedError(
        text(device, ": no kernel for ", op_name(node.op), " of ", to_string(node.type)));
}

}  // namespace plait
