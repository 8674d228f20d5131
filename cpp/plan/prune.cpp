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

// Returns the selection whose rows all selections of the graph use; nullopt if they differ or there
// is none.
std::optional<ops::SelectRows> common_selection(const Graph& graph) {
    std::optional<ops::SelectRows> common;
    for (const Node& node : graph.nodes()) {
        const auto* select = std::get_if<ops::SelectRows>(&node.op);
        if (select == nullptr) continue;
        if (common && common->rows != select->rows) return std::nullopt;
        if (!common || select->begin) common = *select;
    }
    return common;
}

// Returns the input that has the selected rows of an input of attention. Kernels read these before
// the run, to count their tasks, so that the graph cannot compute the selection.
std::optional<InputId> input_of_outputs(const Node& node) {
    const auto* input = std::get_if<ops::Input>(&node.op);
    if (input == nullptr) return std::nullopt;
    if (input->id.field == InputField::first)
        return InputId{InputField::output_first, input->id.group};
    if (input->id.field == InputField::last)
        return InputId{InputField::output_last, input->id.group};
    return std::nullopt;
}

// Returns true if the op computes each row from the same row of its operands, apart from caches.
// That is true of attention if the selected rows of each sequence are known (`attends`).
bool is_row_wise(const Graph& graph, const Op& op, bool attends) {
    const auto* attend = std::get_if<ops::Attend>(&op);
    if (attend == nullptr || !attends) return info_of(op).row_wise;
    return input_of_outputs(graph.node(attend->first)) &&
           input_of_outputs(graph.node(attend->last));
}

// Returns the op for some of its queries. `begin` has the first ones of each sequence.
template <typename Rename, typename RenameRows>
ops::Attend attend_selected(const ops::Attend& all, const Rename& rename,
                            const RenameRows& rename_rows, NodeId begin) {
    Op renamed = all;
    map_operands(renamed, rename);
    auto attend = std::get<ops::Attend>(renamed);
    attend.q = Operand(rename_rows(all.q));
    attend.first = Operand(rename_rows(all.first));
    attend.last = Operand(rename_rows(all.last));
    if (all.positions) attend.positions = OptionalOperand(rename_rows(*all.positions));
    attend.token_begin = Operand(rename(begin));
    return attend;
}

// Returns for each node whether it is read only by selections, directly or through other such
// nodes.
std::vector<bool> find_movable(const Graph& graph, bool attends) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<bool> needed_whole(nodes.size());
    std::vector<bool> movable(nodes.size());
    for (const auto& [id, node] : graph.outputs()) needed_whole[node] = true;
    for (NodeId i = static_cast<NodeId>(nodes.size()); i-- > 0;) {
        const Node& node = nodes[i];
        const bool selects = std::holds_alternative<ops::SelectRows>(node.op);
        movable[i] = !selects && node.extent == Extent::tokens &&
                     is_row_wise(graph, node.op, attends) && !needed_whole[i];
        if (const auto* attend = std::get_if<ops::Attend>(&node.op); attend && movable[i]) {
            // In an encoder, keys and values belong to all tokens of the step.
            needed_whole[attend->keys] = true;
            if (attend->values) needed_whole[*attend->values] = true;
        } else if (!movable[i] && !selects) {
            for_each_operand(node.op, [&](NodeId id) { needed_whole[id] = true; });
        }
    }
    return movable;
}

}  // namespace

void select_early(Graph& graph) {
    const std::optional<ops::SelectRows> common = common_selection(graph);
    if (!common) return;
    const NodeId rows = common->rows;
    const std::vector<bool> movable = find_movable(graph, static_cast<bool>(common->begin));
    const int64_t n_selected = graph.node(rows).type.shape[0];

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
            Node node{.op = ops::SelectRows{Operand(renamed[x]), Operand(renamed[rows])},
                      .type = graph.node(x).type,
                      .extent = Extent::outputs};
            if (const auto input = input_of_outputs(graph.node(x))) node.op = ops::Input{*input};
            node.type.shape.dims[0] = n_selected;
            known->second = append(std::move(node));
        }
        return known->second;
    };
    // The inputs that describe the rows come first: a selection may now precede every node that
    // read them.
    renamed[rows] = append(graph.node(rows));
    if (common->begin) renamed[*common->begin] = append(graph.node(*common->begin));
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        if (i == rows || (common->begin && i == *common->begin)) continue;
        Node node = graph.node(i);
        if (const auto* selection = std::get_if<ops::SelectRows>(&node.op)) {
            renamed[i] = select(selection->x);
            if (node.role != Role::none) {
                nodes[renamed[i]].role = node.role;
                nodes[renamed[i]].layer = node.layer;
            }
            continue;
        }
        const auto rename = [&](NodeId id) { return renamed[id]; };
        if (movable[i]) {
            const auto rename_rows = [&](NodeId id) {
                return graph.node(id).extent == Extent::tokens ? select(id) : renamed[id];
            };
            if (auto* attend = std::get_if<ops::Attend>(&node.op))
                *attend = attend_selected(*attend, rename, rename_rows, *common->begin);
            else
                map_operands(node.op, rename_rows);
            node.extent = Extent::outputs;
            node.type.shape.dims[0] = n_selected;
        } else {
            map_operands(node.op, rename);
        }
        renamed[i] = append(std::move(node));
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [id, node] : outputs) node = renamed[node];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait
