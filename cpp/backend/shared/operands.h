// Values that the bindings of several backends compute from a node.
#pragma once

#include <span>

#include "backend/shared/cache_layout.h"
#include "backend/shared/positions.h"
#include "graph/graph.h"

namespace plait {

RopeFrequencies rope_frequencies(const Rope& rope);

// Returns the layout of a cache's rows, each of which holds `heads` heads.
CacheLayout cache_layout(const TensorType& storage, int64_t heads);

inline int64_t row_elements(const TensorType& type) {
    return type.shape[0] == 0 ? 0 : type.shape.elements() / type.shape[0];
}

// A float operand that is a weight, or a view of one.
struct WeightView {
    const ops::Weight* weight = nullptr;  // null if the value is not a weight
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
