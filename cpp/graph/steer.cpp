#include "graph/steer.h"

#include "graph/ops.h"
#include "graph/rewrite.h"

namespace plait {

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
    rewrite(graph, [&](NodeId old, Value x) {
        for (const NamedValue& value : values) {
            if (value.node != old || (!has_outputs && only_of_outputs(value.name.role))) continue;
            for (size_t i = 0; i < names.size(); ++i)
                if (names[i] == value.name) x = edit(x, static_cast<uint16_t>(i));
        }
        return x;
    });
}

}  // namespace plait
