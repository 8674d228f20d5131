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

namespace {

Value insert_edit(Value x, const EditPoint& point, const EditRowsInput& rows) {
    if (point.on_host) return edit(x, point.index);
    const InputField field =
        x.extent() == Extent::outputs ? InputField::edit_output_picks : InputField::edit_picks;
    const Value picks =
        x.graph->input({field, point.index}, {DType::i32, {x.shape()[0], 2}}, x.extent());
    return edit_rows(x,
                     x.graph->input({InputField::edit_rows, rows.group},
                                    {DType::f32, {rows.elements}}, Extent::fixed),
                     picks);
}

}  // namespace

void insert_edits(Graph& graph, std::span<const EditPoint> points, const EditRowsInput& rows,
                  bool has_outputs) {
    const std::vector<NamedValue> values = named_values(graph);
    const auto outputs = graph.outputs();
    rewrite(graph, [&](NodeId old, Value x) {
        const auto named = std::ranges::find(values, old, &NamedValue::node);
        if (named == values.end() || (!has_outputs && only_of_outputs(named->name.role))) return x;
        bool ends_on_host = false;
        for (const EditPoint& point : points) {
            if (point.name != named->name) continue;
            x = insert_edit(x, point, rows);
            ends_on_host = point.on_host;
        }
        const bool is_output = std::ranges::any_of(
            outputs, [old](const auto& output) { return output.second == old; });
        // The host edits in the arena, but a device writes an output directly to the caller's
        // buffer.
        return ends_on_host && is_output ? slice(x, 0, x.shape()[-1]) : x;
    });
}

}  // namespace plait
