// Binding the nodes of a segment to a backend's kernels.
#pragma once

#include "graph/graph.h"

namespace plait {

// Whether a backend computes the node. Sources and views exist without being computed; edits happen
// between two executables.
inline bool computes(const Node& node) { return info_of(node.op).kind == OpKind::kernel; }

// Calls bind(op, node, binder), the backend's own, if there is anything to compute.
template <typename Binder>
void bind_computed(const Node& node, Binder& binder) {
    std::visit(
        [&]<OpType T>(const T& op) {
            if constexpr (T::kInfo.kind == OpKind::kernel) bind(op, node, binder);
        },
        node.op);
}

}  // namespace plait
