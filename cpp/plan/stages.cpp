#include "plan/stages.h"

#include <algorithm>

namespace plait {
namespace {

bool is_view(const Op& op) {
    return std::holds_alternative<ReshapeOp>(op) || std::holds_alternative<WeightRowOp>(op);
}
bool is_source(const Op& op) {
    return std::holds_alternative<WeightOp>(op) || std::holds_alternative<InputOp>(op) ||
           std::holds_alternative<StorageOp>(op);
}

}  // namespace

std::vector<uint32_t> find_stages(const Graph& graph) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<uint32_t> stages(nodes.size());
    std::vector<NodeId> maker(nodes.size());  // of the value, seen through views
    std::vector<NodeId> caches;               // storage that the stage touches
    uint32_t stage = 0;
    for (NodeId i = 0; i < nodes.size(); ++i) {
        const Node& node = nodes[i];
        maker[i] = is_view(node.op) ? maker[node.inputs[0]] : i;
        stages[i] = stage;
        if (is_view(node.op) || is_source(node.op)) continue;
        bool waits = false;
        for (const NodeId input : node.inputs) {
            const NodeId made_by = maker[input];
            const Op& op = nodes[made_by].op;
            if (std::holds_alternative<StorageOp>(op)) {
                waits |=
                    writes_storage(node.op) && std::ranges::find(caches, made_by) != caches.end();
            } else if (!is_source(op)) {
                waits |= stages[made_by] == stage;
            }
        }
        if (waits) {
            ++stage;
            caches.clear();
        }
        stages[i] = stage;
        for (const NodeId input : node.inputs)
            if (std::holds_alternative<StorageOp>(nodes[maker[input]].op))
                caches.push_back(maker[input]);
    }
    return stages;
}

}  // namespace plait
