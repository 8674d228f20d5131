#include "graph/graph.h"

#include <optional>

#include "base/error.h"

namespace plait {

const TensorType& Value::type() const { return graph->node(id).type; }
Extent Value::extent() const { return graph->node(id).extent; }

Value Graph::add(Op op, const TensorType& type, Extent extent) {
    for_each_operand(op, [&](NodeId id) { PLAIT_CHECK(id < nodes_.size()); });
    nodes_.push_back({.op = op, .type = type, .extent = extent});
    return {this, static_cast<NodeId>(nodes_.size() - 1)};
}

namespace {

template <typename T>
std::optional<NodeId> find_source(std::span<const Node> nodes, const T& op) {
    for (NodeId i = 0; i < nodes.size(); ++i)
        if (const T* same = std::get_if<T>(&nodes[i].op); same && *same == op) return i;
    return std::nullopt;
}

}  // namespace

Value Graph::weight(const Weight& weight) {
    PLAIT_CHECK(weight);
    if (const auto id = find_source(nodes_, ops::Weight{weight.id})) return {this, *id};
    return add(ops::Weight{weight.id}, weight.type, Extent::fixed);
}

Value Graph::storage(uint32_t index, const TensorType& type) {
    if (const auto id = find_source(nodes_, ops::Storage{index})) return {this, *id};
    return add(ops::Storage{index}, type, Extent::fixed);
}

Value Graph::input(InputId id, const TensorType& type, Extent extent) {
    if (const auto node = find_source(nodes_, ops::Input{id})) return {this, *node};
    return add(ops::Input{id}, type, extent);
}

void Graph::output(OutputId id, Value value) {
    PLAIT_CHECK(value.graph == this);
    outputs_.emplace_back(id, value.id);
}

void Graph::name(Value value, Role role, int layer) {
    PLAIT_CHECK(value.graph == this);
    nodes_[value.id].role = role;
    nodes_[value.id].layer = static_cast<int16_t>(layer);
}

void Graph::replace(std::vector<Node> nodes, GraphOutputs outputs) {
    for (NodeId i = 0; i < nodes.size(); ++i)
        for_each_operand(nodes[i].op, [i](NodeId id) { PLAIT_CHECK(id < i); });
    for (const auto& [id, node] : outputs) PLAIT_CHECK(node < nodes.size());
    nodes_ = std::move(nodes);
    outputs_ = std::move(outputs);
}

}  // namespace plait
