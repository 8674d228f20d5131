#include "graph/rewrite.h"

namespace plait {

void rewrite(Graph& graph, const Follow& follow) {
    Graph result;
    std::vector<Value> renamed;
    std::vector<Value> inputs;
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        inputs.clear();
        for (const NodeId input : node.inputs) inputs.push_back(renamed[input]);
        const Value copy = result.add(node.op, node.type, node.extent, inputs);
        const Value value = follow(i, copy);
        result.name(value, node.role, node.layer);
        renamed.push_back(value);
    }
    for (const auto& [id, node] : graph.outputs()) result.output(id, renamed[node]);
    graph = std::move(result);
}

}  // namespace plait
