#include "runtime/step/graph_info.h"

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
    case InputField::output_begin: return "output_begin";
    case InputField::write_rows: return "write_rows";
    case InputField::first: return "first";
    case InputField::last: return "last";
    case InputField::output_first: return "output_first";
    case InputField::output_last: return "output_last";
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
    case InputField::adapter_token_scale: return "adapter_token_scale";
    case InputField::adapter_output_scale: return "adapter_output_scale";
    case InputField::adapter_token_picks: return "adapter_token_picks";
    case InputField::adapter_output_picks: return "adapter_output_picks";
    case InputField::control: return "control";
    case InputField::edit_rows: return "edit_rows";
    case InputField::edit_picks: return "edit_picks";
    case InputField::edit_output_picks: return "edit_output_picks";
    }
    return "";
}

}  // namespace

std::vector<NodeInfo> describe(const Plan& plan, const WeightStores& weights,
                               const std::vector<std::string>& devices) {
    std::vector<NodeInfo> nodes;
    for (const Plan::Part& part : plan.parts()) {
        const LoweredGraph& graph = *part.graph;
        for (NodeId i = 0; i < graph.nodes().size(); ++i) {
            const LoweredNode& node = graph.node(i);
            NodeInfo& info = nodes.emplace_back();
            info.op = node.info->name;
            if (const auto* weight = std::get_if<ops::Weight>(&node.reference))
                info.name = weights.name(weight->id);
            else if (const auto* input = std::get_if<ops::Input>(&node.reference))
                info.name = field_name(input->id.field);
            else if (node.role != Role::none)
                info.name = full_name(node.role, node.layer);
            info.layer = node.layer;
            info.type = node.type;
            info.counts = counts_of(node.extent);
            info.bytes = node.type.bytes();
            info.stage = part.stages[i];
            for (const NodeId operand : graph.operands(i))
                info.inputs.push_back(part.first_node + operand);
            info.device = devices[part.device];
            for (const char* fused : node.info->fused)
                if (fused != nullptr) info.fused.emplace_back(fused);
            info.writes_cache = node.info->writes_storage;
            info.output = std::ranges::any_of(
                graph.outputs(), [i](const auto& output) { return output.second == i; });
        }
    }
    return nodes;
}

}  // namespace plait
