#include "backend/fuse/absorb.h"

#include "base/error.h"

namespace plait {
namespace {

std::vector<int> count_uses(const Graph& graph) {
    std::vector<int> uses(graph.nodes().size());
    for (const Node& node : graph.nodes())
        for_each_operand(node.op, [&](NodeId id) { ++uses[id]; });
    for (const auto& [id, node] : graph.outputs()) ++uses[node];
    return uses;
}

}  // namespace

void absorb(Graph& graph, uint8_t device, const Match& match) {
    const std::vector<int> uses = count_uses(graph);
    std::vector<Node> changed(graph.nodes().begin(), graph.nodes().end());
    std::vector<bool> gone(changed.size());
    for (NodeId i = 0; i < changed.size(); ++i) {
        if (graph.node(i).device != device) continue;
        std::optional<Absorbed> found = match(graph, graph.node(i), uses);
        if (!found) continue;
        const Node& absorbed = graph.node(found->absorbed);
        if (absorbed.device != device) continue;
        PLAIT_CHECK(uses[found->absorbed] == 1 && !gone[found->absorbed]);
        gone[found->absorbed] = true;
        Node& node = changed[i];
        node.op = found->op;
        if (node.role == Role::none) {
            node.role = absorbed.role;
            node.layer = absorbed.layer;
        }
    }
    std::vector<Node> nodes;
    std::vector<NodeId> renamed(changed.size());
    for (NodeId i = 0; i < changed.size(); ++i) {
        if (gone[i]) continue;
        map_operands(changed[i].op, [&](NodeId id) { return renamed[id]; });
        renamed[i] = static_cast<NodeId>(nodes.size());
        nodes.push_back(std::move(changed[i]));
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [id, node] : outputs) node = renamed[node];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait
