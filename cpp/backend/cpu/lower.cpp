#include "backend/cpu/lower.h"

#include <unordered_map>

#include "backend/cpu/kernels/attention/attend.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

bool multiplies_blocks(const Graph& graph, const Node& node) {
    if (!std::holds_alternative<LinearOp>(node.op) &&
        !std::holds_alternative<HeadLinearOp>(node.op) &&
        !std::holds_alternative<ExpertLinearOp>(node.op))
        return false;
    return is_block_type(graph.node(node.inputs[1]).type.dtype) &&
           graph.node(node.inputs[0]).type.dtype == DType::f32;
}

Node quantized(const Graph& graph, NodeId x, NodeId renamed, uint8_t device) {
    const Node& source = graph.node(x);
    const int64_t columns = source.type.shape[-1];
    PLAIT_CHECK(columns % 32 == 0);
    Node node;
    node.op = QuantizeRowsOp{};
    node.type = {DType::i32, source.type.shape};
    node.type.shape.dims[static_cast<size_t>(source.type.shape.rank - 1)] = columns / 32 * 10;
    node.extent = source.extent;
    node.inputs = {renamed};
    node.device = device;
    return node;
}

bool may_split_keys(const Node& node, const Node& keys, const Node& last_input) {
    const auto* op = std::get_if<AttendOp>(&node.op);
    return op && op->flash && keys.extent == Extent::fixed && keys.type.shape[0] > kKeySplit &&
           !std::holds_alternative<AttendSplitsOp>(last_input.op);
}

// Room for the splits of two tokens that see all rows: more tokens are tiles enough.
Node splits_of(const Node& attend, int64_t rows) {
    const auto& op = std::get<AttendOp>(attend.op);
    Node node;
    node.op = AttendSplitsOp{op};
    node.type = {DType::f32, {2 * rows / kKeySplit * split_floats(op.n_heads, op.value_dim)}};
    node.inputs = attend.inputs;
    node.device = attend.device;
    return node;
}

}  // namespace

void lower(Graph& graph, int threads, uint8_t device) {
    std::vector<Node> nodes;
    std::vector<NodeId> renamed(graph.nodes().size());
    std::unordered_map<NodeId, NodeId> rounded;  // x -> its quantize_rows
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        Node node = graph.node(id);
        for (NodeId& input : node.inputs) input = renamed[input];
        const bool ours = node.device == device;
        if (ours && multiplies_blocks(graph, graph.node(id))) {
            const NodeId x = graph.node(id).inputs[0];
            const auto [found, added] = rounded.try_emplace(x, static_cast<NodeId>(nodes.size()));
            if (added) nodes.push_back(quantized(graph, x, renamed[x], device));
            node.inputs[0] = found->second;
        }
        if (ours && std::holds_alternative<AttendOp>(node.op) && threads > 1) {
            const Node& keys = nodes[node.inputs[1]];
            if (may_split_keys(node, keys, nodes[node.inputs.back()])) {
                nodes.push_back(splits_of(node, keys.type.shape[0]));
                node.inputs.push_back(static_cast<NodeId>(nodes.size() - 1));
            }
        }
        renamed[id] = static_cast<NodeId>(nodes.size());
        nodes.push_back(std::move(node));
    }
    std::vector<std::pair<OutputId, NodeId>> outputs(graph.outputs().begin(),
                                                     graph.outputs().end());
    for (auto& [output, id] : outputs) id = renamed[id];
    graph.replace(std::move(nodes), std::move(outputs));
}

}  // namespace plait::cpu
