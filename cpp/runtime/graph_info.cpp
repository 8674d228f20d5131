#include "runtime/graph_info.h"

#include <algorithm>

namespace plait {
namespace {

const char* counts_of(Extent extent) {
    switch (extent) {
        case Extent::fixed: return "";
        case Extent::tokens: return "tokens";
        case Extent::outputs: return "outputs";
        case Extent::moves: return "moves";
    }
    return "";
}

std::vector<std::string> parts_of(const Op& op) {
    if (std::holds_alternative<NormQuantizeOp>(op)) return {"rms_norm", "quantize_rows"};
    if (std::holds_alternative<GateQuantizeOp>(op)) return {"gate", "quantize_rows"};
    if (std::holds_alternative<LinearAddOp>(op)) return {"linear", "add"};
    return {};
}

}  // namespace

std::vector<NodeInfo> describe(const Plan& plan, const WeightSource& weights) {
    const Graph& graph = plan.graph();
    std::vector<NodeInfo> nodes;
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        NodeInfo& info = nodes.emplace_back();
        info.op = op_name(node.op);
        if (const auto* weight = std::get_if<WeightOp>(&node.op))
            info.name = weights.name(weight->id);
        else if (node.role != Role::none)
            info.name = full_name(node.role, node.layer);
        info.layer = node.layer;
        info.type = node.type;
        info.counts = counts_of(node.extent);
        info.bytes = node.type.bytes();
        info.stage = plan.stages()[i];
        info.inputs = node.inputs;
        info.fused = parts_of(node.op);
        info.writes_cache = writes_storage(node.op);
        info.output = std::ranges::any_of(graph.outputs(),
                                          [i](const auto& output) { return output.second == i; });
    }
    return nodes;
}

}  // namespace plait
