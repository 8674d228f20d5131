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

const char* field_name(InputField field) {
    switch (field) {
    case InputField::tokens: return "tokens";
    case InputField::embeddings: return "embeddings";
    case InputField::positions: return "positions";
    case InputField::token_begin: return "token_begin";
    case InputField::output_tokens: return "output_tokens";
    case InputField::write_rows: return "write_rows";
    case InputField::first: return "first";
    case InputField::last: return "last";
    case InputField::runs: return "runs";
    case InputField::run_begin: return "run_begin";
    case InputField::key_positions: return "key_positions";
    case InputField::key_begin: return "key_begin";
    case InputField::read_states: return "read_states";
    case InputField::write_states: return "write_states";
    case InputField::from_rows: return "from_rows";
    case InputField::to_rows: return "to_rows";
    case InputField::deltas: return "deltas";
    case InputField::adapter_scale: return "adapter_scale";
    case InputField::control: return "control";
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

std::vector<NodeInfo> describe(const Plan& plan, const WeightStores& weights,
                               const std::vector<std::string>& devices) {
    const Graph& graph = plan.graph();
    std::vector<NodeInfo> nodes;
    for (NodeId i = 0; i < graph.nodes().size(); ++i) {
        const Node& node = graph.node(i);
        NodeInfo& info = nodes.emplace_back();
        info.op = op_name(node.op);
        if (const auto* weight = std::get_if<WeightOp>(&node.op))
            info.name = weights.name(weight->id);
        else if (const auto* input = std::get_if<InputOp>(&node.op))
            info.name = field_name(input->id.field);
        else if (node.role != Role::none)
            info.name = full_name(node.role, node.layer);
        info.layer = node.layer;
        info.type = node.type;
        info.counts = counts_of(node.extent);
        info.bytes = node.type.bytes();
        info.stage = plan.stages()[i];
        info.inputs = node.inputs;
        info.device = devices[node.device];
        info.fused = parts_of(node.op);
        info.writes_cache = writes_storage(node.op);
        info.output = std::ranges::any_of(graph.outputs(),
                                          [i](const auto& output) { return output.second == i; });
    }
    return nodes;
}

}  // namespace plait
