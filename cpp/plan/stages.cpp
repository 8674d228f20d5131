#include "plan/passes.h"

#include <algorithm>

namespace plait {
namespace {

bool is_storage(const LoweredNode& node) {
    return std::holds_alternative<ops::Storage>(node.reference);
}

}  // namespace

std::vector<uint32_t> find_stages(const LoweredGraph& graph) {
    const std::span<const LoweredNode> nodes = graph.nodes();
    std::vector<uint32_t> stages(nodes.size());
    std::vector<NodeId> maker(nodes.size());  // the node that computes the value behind views
    std::vector<NodeId> caches;               // storage that the current stage accesses
    uint32_t stage = 0;
    for (NodeId i = 0; i < nodes.size(); ++i) {
        const OpInfo& info = *nodes[i].info;
        maker[i] = info.kind == OpKind::view ? maker[graph.operands(i).front()] : i;
        stages[i] = stage;
        if (info.kind == OpKind::view || info.kind == OpKind::source) continue;
        bool waits = false;
        for (const NodeId operand : graph.operands(i)) {
            const NodeId made_by = maker[operand];
            if (is_storage(nodes[made_by]))
                waits |= info.writes_storage && std::ranges::find(caches, made_by) != caches.end();
            else if (nodes[made_by].info->kind != OpKind::source)
                waits |= stages[made_by] == stage;
        }
        if (waits) {
            ++stage;
            caches.clear();
        }
        stages[i] = stage;
        for (const NodeId operand : graph.operands(i))
            if (is_storage(nodes[maker[operand]])) caches.push_back(maker[operand]);
    }
    return stages;
}

}  // namespace plait
