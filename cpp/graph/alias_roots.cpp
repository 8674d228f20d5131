#include "graph/alias_roots.h"

namespace plait {

std::vector<NodeId> alias_roots(const Graph& graph) {
    std::vector<NodeId> roots;
    roots.reserve(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
        const NodeId aliased = aliased_operand(node.op);
        roots.push_back(aliased == kNoNode ? static_cast<NodeId>(roots.size()) : roots[aliased]);
    }
    return roots;
}

}  // namespace plait
