#include "backend/cpu/lower.h"

#include <unordered_map>

#include "backend/cpu/kernels/attention/attend.h"
#include "base/error.h"

namespace plait::cpu {
namespace {

// The product's rows if they are to be rounded to int8; null if the op is no such product.
Operand* rounded_rows(const Graph& graph, Op& op) {
    return std::visit(
        [&]<typename T>(T& product) -> Operand* {
            if constexpr (std::is_same_v<T, ops::Linear> || std::is_same_v<T, ops::HeadLinear> ||
                          std::is_same_v<T, ops::ExpertLinear>) {
                if (is_block_type(graph.node(product.weight).type.dtype) &&
                    graph.node(product.x).type.dtype == DType::f32)
                    return &product.x;
            }
            return nullptr;
        },
        op);
}

Node quantized(const Graph& graph, NodeId x, NodeId renamed, uint8_t device) {
    const Node& source = graph.node(x);
    const int64_t columns = source.type.shape[-1];
    PLAIT_CHECK(columns % 32 == 0);
    Node node;
    node.op = ops::QuantizeRows{Operand(renamed)};
    node.type = {DType::i32, source.type.shape};
    node.type.shape.dims[static_cast<size_t>(source.type.shape.rank - 1)] = columns / 32 * 10;
    node.extent = source.extent;
    node.device = device;
    return node;
}

bool may_split_keys(const ops::Attend& op, const Node& keys) {
    return op.params.flash && keys.extent == Extent::fixed && keys.type.shape[0] > kKeySplit;
}

// Room for the splits of two tokens that attend to all rows: more tokens give enough tiles.
Node splits_of(const ops::Attend& op, int64_t rows, uint8_t device) {
    Node node;
    node.op = ops::AttendSplits{op};
    node.type = {DType::f32,
                 {2 * rows / kKeySplit * split_floats(op.params.n_heads, op.params.value_dim)}};
    node.device = device;
    return node;
}

}  // namespace

void lower(Graph& graph, int threads, uint8_t device) {
    std::vector<Node> nodes;
    std::vector<NodeId> renamed(graph.nodes().size());
    std::unordered_map<NodeId, NodeId> rounded;  // x -> its quantize_rows
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        Node node = graph.node(id);
        const bool ours = node.device == device;
        if (Operand* rows = ours ? rounded_rows(graph, node.op) : nullptr) {
            const NodeId x = *rows;
            const auto [found, added] = rounded.try_emplace(x, static_cast<NodeId>(nodes.size()));
            if (added) nodes.push_back(quantized(graph, x, renamed[x], device));
            map_operands(node.op, [&](NodeId i) { return i == x ? found->second : renamed[i]; });
        } else {
            map_operands(node.op, [&](NodeId i) { return renamed[i]; });
        }
        const auto* attend = std::get_if<ops::Attend>(&node.op);
        if (ours && attend != nullptr && threads > 1) {
            const Node& keys = nodes[attend->keys];
            if (may_split_keys(*attend, keys)) {
                const ops::Attend op = *attend;
                nodes.push_back(splits_of(op, keys.type.shape[0], device));
                node.op = ops::AttendMerge{op, Operand(static_cast<NodeId>(nodes.size() - 1))};
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
