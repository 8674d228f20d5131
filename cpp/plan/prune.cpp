#include "plan/prune.h"

#include <vector>

namespace plait {

void prune(Graph& graph) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<bool> used(nodes.size());
    for (const auto& [id, node] : graph.outputs()) used[node] = true;
    for (size_t i = nodes.size(); i-- > 0;) {
        if (!used[i] && !writes_storage(nodes[i].op)) continue;
        used[i] = true;
        for_each_operand(nodes[i].op, [&](NodeId id) { used[id] = true; });
    }
    std::vector<NodeId> renumbered(nodes.size());
    std::vector<Node> kept;
    for (NodeId i = 0; i < nodes.size(); ++i) {
        if (!used[i]) continue;
        renumbered[i] = static_cast<NodeId>(kept.size());
        kept.push_back(nodes[i]);
        map_operands(kept.back().op, [&](NodeId id) { return renumbered[id]; });
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [id, node] : outputs) node = renumbered[node];
    graph.replace(std::move(kept), std::move(outputs));
}

}  // namespace plait
