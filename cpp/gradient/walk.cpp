#include "gradient/walk.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace plait::gradient {

NodeId without_reshapes(const Graph& graph, NodeId id) {
    while (const auto* reshape = std::get_if<ops::Reshape>(&graph.node(id).op)) id = reshape->x;
    return id;
}

int64_t Walk::rows(NodeId id) const {
    if (const auto* store = std::get_if<ops::StoreRows>(&node(id).op)) return rows(store->x);
    return step_.rows(node(id).extent);
}

int64_t Walk::row_width(NodeId id) const {
    if (const auto* store = std::get_if<ops::StoreRows>(&node(id).op)) return row_width(store->x);
    const Shape& shape = node(id).type.shape;
    return node(id).extent == Extent::fixed ? shape.elements() : shape.elements() / shape[0];
}

std::span<float> Walk::gradient(NodeId id) {
    if (!plan_.flows[id]) return {};
    std::vector<float>& gradient = gradients_[id];
    if (gradient.empty()) gradient.resize(elements(id));
    return gradient;
}

std::vector<float> Walk::take(NodeId id) { return std::move(gradients_[id]); }

std::span<const float> Walk::value(NodeId id) {
    const NodeId root = without_reshapes(graph_, id);
    const OpKind kind = info_of(node(root).op).kind;
    if (kind == OpKind::kernel || kind == OpKind::host) return step_.value(root);
    return constant(root);
}

std::span<const float> Walk::constant(NodeId id) {
    const auto [found, added] = constants_.try_emplace(id);
    std::vector<float>& values = found->second;
    if (!added) return values;
    values.resize(elements(id));
    const Node& source = node(id);
    if (const auto* input = std::get_if<ops::Input>(&source.op)) {
        const auto bytes = std::as_writable_bytes(std::span(values));
        std::ranges::copy(step_.input(input->id).first(bytes.size()), bytes.begin());
    } else if (const auto* weight = std::get_if<ops::Weight>(&source.op)) {
        step_.read_weight(weight->id, 0, values);
    } else {
        const auto& row = std::get<ops::WeightRow>(source.op);
        const NodeId of = without_reshapes(graph_, row.weight);
        step_.read_weight(std::get<ops::Weight>(node(of).op).id, row.row, values);
    }
    return values;
}

std::span<const int32_t> Walk::integers(NodeId id) const {
    const std::span<const std::byte> bytes = step_.input(std::get<ops::Input>(node(id).op).id);
    return {reinterpret_cast<const int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t)};
}

}  // namespace plait::gradient
