#include "graph/rewrite.h"

#include <algorithm>

#include "graph/ops.h"

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

void add_control(Graph& graph, int n_layers) {
    const Graph& before = graph;
    rewrite(graph, [&](NodeId old, Value x) {
        const Node& node = before.node(old);
        if (node.role != Role::l_out || node.layer >= n_layers) return x;
        const TensorType row{DType::f32, {node.type.shape[-1]}};
        return x + x.graph->input({InputField::control, static_cast<uint16_t>(node.layer)}, row,
                                  Extent::fixed);
    });
}

void insert_edits(Graph& graph, std::span<const ValueName> names, bool has_outputs) {
    const std::vector<NamedValue> values = named_values(graph);
    const auto outputs = graph.outputs();
    rewrite(graph, [&](NodeId old, Value x) {
        const auto named = std::ranges::find(values, old, &NamedValue::node);
        if (named == values.end() || (!has_outputs && only_of_outputs(named->name.role))) return x;
        const NodeId before = x.id;
        for (size_t i = 0; i < names.size(); ++i)
            if (names[i] == named->name) x = edit(x, static_cast<uint16_t>(i));
        const bool is_output = std::ranges::any_of(
            outputs, [old](const auto& output) { return output.second == old; });
        // Edits happen in the arena, but a device writes an output directly to the caller's buffer.
        return x.id != before && is_output ? slice(x, 0, x.shape()[-1]) : x;
    });
}

}  // namespace plait
