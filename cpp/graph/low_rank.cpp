#include "graph/low_rank.h"

#include <algorithm>
#include <optional>

#include "graph/ops.h"
#include "graph/rewrite.h"

namespace plait {
namespace {

// Which input of such a node the weight is.
std::optional<size_t> weight_input(const Op& op) {
    if (std::holds_alternative<EmbedOp>(op)) return 0;
    if (std::holds_alternative<LinearOp>(op) || std::holds_alternative<HeadLinearOp>(op) ||
        std::holds_alternative<ExpertLinearOp>(op))
        return 1;
    return std::nullopt;
}

std::optional<WeightId> weight_of(const Graph& graph, const Node& node) {
    const auto input = weight_input(node.op);
    if (!input) return std::nullopt;
    const auto* weight = std::get_if<WeightOp>(&graph.node(node.inputs[*input]).op);
    return weight ? std::optional(weight->id) : std::nullopt;
}

// A tied table is looked up and multiplied by; A [vocab, r] fits the first use alone.
bool fits(const Op& op, const Value& x, const LowRank& delta) {
    if (std::holds_alternative<EmbedOp>(op)) return true;
    return delta.a.type.shape[-1] == x.shape()[-1] &&
           delta.a.type.shape[-2] == delta.b.type.shape[-1];
}

// B (scale * A x) as the node multiplies: `inputs` are its own, with x first.
Value product(Graph& graph, const Op& op, std::span<const Value> inputs, const LowRank& delta) {
    const Value a = graph.weight(delta.a);
    const Value b = graph.weight(delta.b);
    const Value scale =
        graph.input({InputField::adapter_scale, delta.scale}, {DType::f32, {1}}, Extent::fixed);
    if (std::holds_alternative<EmbedOp>(op)) return linear(embed(a, inputs[1]) * scale, b);
    if (std::holds_alternative<HeadLinearOp>(op))
        return head_linear(head_linear(inputs[0], a) * scale, b);
    if (std::holds_alternative<ExpertLinearOp>(op))
        return expert_linear(expert_linear(inputs[0], a, inputs[2]) * scale, b, inputs[2]);
    return linear(linear(inputs[0], a) * scale, b);
}

}  // namespace

void add_low_rank(Graph& graph, std::span<const LowRank> deltas) {
    const Graph& before = graph;
    rewrite(graph, [&](NodeId old, Value y) {
        const std::optional<WeightId> weight = weight_of(before, before.node(old));
        if (!weight) return y;
        Graph& after = *y.graph;
        // Copies: what is added moves the nodes.
        const Op op = after.node(y.id).op;
        std::vector<Value> inputs;
        for (const NodeId input : after.node(y.id).inputs) inputs.push_back({&after, input});
        for (const LowRank& delta : deltas)
            if (delta.base == *weight && fits(op, inputs[0], delta))
                y = y + product(after, op, inputs, delta);
        return y;
    });
}

std::vector<WeightId> adaptable_weights(const Graph& graph) {
    std::vector<WeightId> adaptable, others;
    for (const Node& node : graph.nodes()) {
        const auto input = weight_input(node.op);
        for (size_t i = 0; i < node.inputs.size(); ++i)
            if (const auto* weight = std::get_if<WeightOp>(&graph.node(node.inputs[i]).op))
                (input == i ? adaptable : others).push_back(weight->id);
    }
    std::erase_if(adaptable,
                  [&](WeightId id) { return std::ranges::find(others, id) != others.end(); });
    return adaptable;
}

}  // namespace plait
