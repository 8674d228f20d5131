// The passes that remove computation which no output needs: whole nodes, and rows that are not
// selected.
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "plan/passes.h"

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

namespace {

// Returns the list of rows that all selections of the graph use; nullopt if they differ or there is
// none.
std::optional<NodeId> selected_rows(const Graph& graph) {
    std::optional<NodeId> rows;
    for (const Node& node : graph.nodes()) {
        const auto* select = std::get_if<ops::SelectRows>(&node.op);
        if (select == nullptr) continue;
        if (rows && *rows != select->rows) return std::nullopt;
        rows = select->rows;
    }
    return rows;
}

// Returns for each node whether it is read only by selections, directly or through other such
// nodes.
std::vector<bool> find_movable(const Graph& graph) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<bool> needed_whole(nodes.size());
    std::vector<bool> movable(nodes.size());
    for (const auto& [id, node] : graph.outputs()) needed_whole[node] = true;
    for (NodeId i = static_cast<NodeId>(nodes.size()); i-- > 0;) {
        const Node& node = nodes[i];
        const bool selects = std::holds_alternative<ops::SelectRows>(node.op);
        movable[i] = !selects && node.extent == Extent::tokens && info_of(node.op).row_wise &&
                     !needed_whole[i];
        if (!movable[i] && !selects)
            for_each_operand(node.op, [&](NodeId id) { needed_whole[id] = true; });
    }
    return movable;
}

}  // namespace

void select_early(Graph& graph) {
    const std::optional<NodeId> rows = selected_rows(graph);
    if (!rows) return;
    const std::vector<bool> movable = find_movable(graph);
    const int64_t n_selected = graph.node(*rows).type.shape[0];

    std::vector<Node> nodes;
    std::vector<NodeId> renamed(graph.nodes().size());
    std::map<NodeId, NodeId> selected;  // a value of all tokens -> its selected rows
    const auto append = [&](Node node) {
        nodes.push_back(std::move(node));
        return static_cast<NodeId>(nodes.size() - 1);
    };
    const auto select = [&](NodeId x) {
        if (movable[x]) return renamed[x];
        const auto [known, added] = selected.try_emplace(x);
        if (added) {
            Node node{.op = ops::SelectRows{Operand(renamed[x]), Operand(renamed[*rows])},
                      .type = graph.node(x).type,
                      .extent = Extent::outputs};
            node.type.shape.dims[0] = n_selected;
            known->second = append(std::move(node));
        }
        return known->second;
    };
    // The list of rows comes first: a selection may now precede every node that read the list.
    renamed[*rows] = append(graph.node(*rows));
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        if (i == *rows) continue;
        Node node = graph.node(i);
        if (const auto* selection = std::get_if<ops::SelectRows>(&node.op)) {
            renamed[i] = select(selection->x);
            if (node.role != Role::none) {
                nodes[renamed[i]].role = node.role;
                nodes[renamed[i]].layer = node.layer;
            }
            continue;
        }
        if (movable[i]) {
            map_operands(node.op, [&](NodeId id) {
                return graph.node(id).extent == Extent::tokens ? select(id) : renamed[id];
            });
            node.extent = Extent::outputs;
            node.type.shape.dims[0] = n_selected;
        } else {
            map_operands(node.op, [&](NodeId id) { return renamed[id]; });
        }
        renamed[i] = append(std::move(node));
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [id, node] : outputs) node = renamed[node];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait
