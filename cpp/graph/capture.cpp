#include "graph/capture.h"

#include <algorithm>
#include <map>

#include "base/text.h"

namespace plait {

bool only_of_outputs(Role role) {
    return role == Role::result_norm || role == Role::result_output || role == Role::result_scores;
}

std::string full_name(const ValueName& name) {
    const std::string first = full_name(name.role, name.layer);
    return name.nth == 0 ? first : text(first, ".", name.nth + 1);
}

std::string short_name(const ValueName& name) {
    if (name.layer < 0) return full_name(name);
    const std::string first = text(to_string(name.role), ".", name.layer);
    return name.nth == 0 ? first : text(first, ".", name.nth + 1);
}

std::vector<NamedValue> named_values(const Graph& graph) {
    std::vector<NamedValue> values;
    std::map<ValueName, uint16_t> known;  // number of values by role and layer
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        const DType dtype = node.role == Role::router ? DType::i32 : DType::f32;
        if (node.role == Role::none || node.type.dtype != dtype) continue;
        if (node.extent != Extent::tokens && node.extent != Extent::outputs) continue;
        ValueName name{node.role, node.layer};
        name.nth = known[name]++;
        values.push_back({name, i});
    }
    return values;
}

void capture(Graph& graph, std::span<const ValueName> names, bool has_outputs) {
    const std::vector<NamedValue> values = named_values(graph);
    for (size_t i = 0; i < names.size(); ++i) {
        if (names[i].role == Role::none) {
            graph.output(captured(i), {&graph, names[i].nth});
            continue;
        }
        const auto found = std::ranges::find(values, names[i], &NamedValue::name);
        if (!has_outputs && only_of_outputs(names[i].role)) continue;
        if (found != values.end()) graph.output(captured(i), {&graph, found->node});
    }
}

}  // namespace plait
