#include "graph/rewrite.h"

#include <optional>

#include "graph/analysis.h"

namespace plait {
namespace {

struct Fused {
    NodeId product;
    ops::LinearAdd op;
};

// Returns the fused op that replaces `node` if it adds a product that no other node reads.
std::optional<Fused> match(const Graph& graph, const Node& node, const std::vector<int>& uses) {
    const auto* add = std::get_if<ops::Add>(&node.op);
    if (add == nullptr) return std::nullopt;
    // The product is usually on the right.
    for (const auto& [product, residual] : {std::pair(add->b, add->a), {add->a, add->b}}) {
        const Node& linear = graph.node(product);
        const auto* op = std::get_if<ops::Linear>(&linear.op);
        if (op == nullptr || uses[product] != 1) continue;
        const Node& other = graph.node(residual);
        if (linear.type.shape == node.type.shape && other.extent == node.extent &&
            other.type.shape == node.type.shape)
            return Fused{product, {op->x, op->weight, residual, op->bias}};
    }
    return std::nullopt;
}

}  // namespace

void fuse_linear_add(Graph& graph) {
    const std::vector<int> uses = count_uses(graph);
    std::vector<Node> changed(graph.nodes().begin(), graph.nodes().end());
    std::vector<bool> absorbed(changed.size());
    for (NodeId i = 0; i < changed.size(); ++i) {
        const std::optional<Fused> fused = match(graph, graph.node(i), uses);
        if (!fused) continue;
        absorbed[fused->product] = true;
        changed[i].op = fused->op;
        if (changed[i].role == Role::none) {
            changed[i].role = graph.node(fused->product).role;
            changed[i].layer = graph.node(fused->product).layer;
        }
    }
    std::vector<Node> nodes;
    std::vector<NodeId> renamed(changed.size());
    for (NodeId i = 0; i < changed.size(); ++i) {
        if (absorbed[i]) continue;
        map_operands(changed[i].op, [&](NodeId id) { return renamed[id]; });
        renamed[i] = static_cast<NodeId>(nodes.size());
        nodes.push_back(changed[i]);
    }
    GraphOutputs outputs(graph.outputs().begin(), graph.outputs().end());
    for (auto& [id, node] : outputs) node = renamed[node];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait
