#include "graph/analysis.h"

namespace plait {

std::vector<int> count_uses(const Graph& graph) {
    std::vector<int> uses(graph.nodes().size());
    for (const Node& node : graph.nodes())
        for_each_operand(node.op, [&](NodeId id) { ++uses[id]; });
    for (const auto& [id, node] : graph.outputs()) ++uses[node];
    return uses;
}

std::vector<NodeId> alias_roots(const Graph& graph) {
    std::vector<NodeId> roots;
    roots.reserve(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
        const NodeId aliased = aliased_operand(node.op);
        roots.push_back(aliased == kNoNode ? static_cast<NodeId>(roots.size()) : roots[aliased]);
    }
    return roots;
}

std::vector<size_t> node_layers(const Graph& graph, size_t n_layers) {
    std::vector<size_t> layers(graph.nodes().size());
    size_t layer = n_layers;
    for (size_t i = layers.size(); i-- > 0;) {
        const int16_t named = graph.nodes()[i].layer;
        if (named >= 0 && static_cast<size_t>(named) < n_layers) layer = static_cast<size_t>(named);
        layers[i] = layer;
    }
    return layers;
}

}  // namespace plait
