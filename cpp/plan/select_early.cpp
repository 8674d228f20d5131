#include "plan/select_early.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

namespace plait {
namespace {

// Whether row i of the result is made of row i of what it counts by tokens, and nothing else.
bool is_row_by_row(const Op& op) {
    return std::visit(
        []<typename T>(const T&) {
            return is_any_of<T, ReshapeOp, RmsNormOp, LayerNormOp, L2NormOp, LinearOp, HeadLinearOp,
                             RopeOp, AddOp, SubOp, MulOp, RowSumOp, SliceOp, ConcatOp, ScaleOp,
                             SoftcapOp, ActivateOp, GateOp, ClampedSwigluOp, RouteOp,
                             ExpertLinearOp, CombineOp>;
        },
        op);
}

// The rows that a graph selects; all its selections are of the same rows.
std::optional<NodeId> selected_rows(const Graph& graph) {
    std::optional<NodeId> rows;
    for (const Node& node : graph.nodes()) {
        if (!std::holds_alternative<SelectRowsOp>(node.op)) continue;
        if (rows && *rows != node.inputs[1]) return std::nullopt;
        rows = node.inputs[1];
    }
    return rows;
}

// Nodes that only selections look at, directly or through others of their kind.
std::vector<bool> find_movable(const Graph& graph) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<bool> wanted_whole(nodes.size());
    std::vector<bool> movable(nodes.size());
    for (const auto& [id, node] : graph.outputs()) wanted_whole[node] = true;
    for (NodeId i = static_cast<NodeId>(nodes.size()); i-- > 0;) {
        const Node& node = nodes[i];
        const bool selects = std::holds_alternative<SelectRowsOp>(node.op);
        movable[i] =
            !selects && node.extent == Extent::tokens && is_row_by_row(node.op) && !wanted_whole[i];
        if (!movable[i] && !selects)
            for (const NodeId input : node.inputs) wanted_whole[input] = true;
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
    std::map<NodeId, NodeId> selected;  // a value of all tokens -> its selection
    const auto append = [&](Node node) {
        nodes.push_back(std::move(node));
        return static_cast<NodeId>(nodes.size() - 1);
    };
    const auto select = [&](NodeId x) {
        if (movable[x]) return renamed[x];
        const auto [known, added] = selected.try_emplace(x);
        if (added) {
            Node node{.op = SelectRowsOp{}, .type = graph.node(x).type, .extent = Extent::outputs};
            node.type.shape.dims[0] = n_selected;
            node.inputs = {renamed[x], renamed[*rows]};
            known->second = append(std::move(node));
        }
        return known->second;
    };
    // The rows come first, as selections may now come before anything that used them.
    renamed[*rows] = append(graph.node(*rows));
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        if (i == *rows) continue;
        Node node = graph.node(i);
        if (std::holds_alternative<SelectRowsOp>(node.op)) {
            renamed[i] = select(node.inputs[0]);
            if (node.role != Role::none) {
                nodes[renamed[i]].role = node.role;
                nodes[renamed[i]].layer = node.layer;
            }
            continue;
        }
        if (movable[i]) {
            for (NodeId& input : node.inputs)
                input = graph.node(input).extent == Extent::tokens ? select(input) : renamed[input];
            node.extent = Extent::outputs;
            node.type.shape.dims[0] = n_selected;
        } else {
            for (NodeId& input : node.inputs) input = renamed[input];
        }
        renamed[i] = append(std::move(node));
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [id, node] : outputs) node = renamed[node];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait
