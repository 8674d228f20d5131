// Float operands that are weights, or views of weights.
#pragma once

#include <span>

#include "graph/graph.h"

namespace plait {

struct WeightView {
    const ops::Weight* weight = nullptr;  // null if the value is no weight
    uint64_t offset = 0;                  // of its first float, in bytes
};

// Follows reshapes and rows of weights.
template <typename OpVariant>
WeightView weight_view(std::span<const BasicNode<OpVariant>> nodes, NodeId id) {
    WeightView view;
    for (;;) {
        const BasicNode<OpVariant>& node = nodes[id];
        if (const auto* row = std::get_if<ops::WeightRow>(&node.op))
            view.offset = static_cast<uint64_t>(row->row * node.type.shape[0]) * sizeof(float);
        else if (!std::holds_alternative<ops::Reshape>(node.op))
            break;
        id = aliased_operand(node.op);
    }
    view.weight = std::get_if<ops::Weight>(&nodes[id].op);
    return view;
}

}  // namespace plait
