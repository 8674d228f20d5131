#include "graph/rewrite.h"

namespace plait {

void rewrite(Graph& graph, const Follow& follow) {
    Graph result;
    std::vector<Value> renamed;
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        Op op = node.op;
        map_operands(op, [&](NodeId id) { return renamed[id].id; });
        const Value value = follow(i, result.add(op, node.type, node.extent));
        result.name(value, node.role, node.layer);
        renamed.push_back(value);
    }
    for (const auto& [id, node] : graph.outputs()) result.output(id, renamed[node]);
    graph = std::move(result);
}

}  // namespace plait
