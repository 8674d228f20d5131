#include "plan/stages.h"

#include <algorithm>

namespace plait {
std::vector<uint32_t> find_stages(const Graph& graph) {
    const std::span<const Node> nodes = graph.nodes();
    std::vector<uint32_t> stages(nodes.size());
    std::vector<NodeId> maker(nodes.size());  // of the value, seen through views
    std::vector<NodeId> caches;               // storage that the stage touches
    uint32_t stage = 0;
    for (NodeId i = 0; i < nodes.size(); ++i) {
        const Node& node = nodes[i];
        const OpInfo& info = info_of(node.op);
        maker[i] = info.kind == OpKind::view ? maker[aliased_operand(node.op)] : i;
        stages[i] = stage;
        if (info.kind == OpKind::view || info.kind == OpKind::source) continue;
        bool waits = false;
        for_each_operand(node.op, [&](NodeId id) {
            const NodeId made_by = maker[id];
            const Op& op = nodes[made_by].op;
            if (std::holds_alternative<ops::Storage>(op))
                waits |= info.writes_storage && std::ranges::find(caches, made_by) != caches.end();
            else if (info_of(op).kind != OpKind::source)
                waits |= stages[made_by] == stage;
        });
        if (waits) {
            ++stage;
            caches.clear();
        }
        stages[i] = stage;
        for_each_operand(node.op, [&](NodeId id) {
            if (std::holds_alternative<ops::Storage>(nodes[maker[id]].op))
                caches.push_back(maker[id]);
        });
    }
    return stages;
}

}  // namespace plait
