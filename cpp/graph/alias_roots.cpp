#include "graph/alias_roots.h"

namespace plait {

std::vector<NodeId> alias_roots(const Graph& graph) {
    std::vector<NodeId> roots;
    roots.reserve(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
        const auto self = static_cast<NodeId>(roots.size());
        roots.push_back(is_alias(node.op) ? roots[node.inputs[0]] : self);
    }
    return roots;
}

}  // namespace plait
