#include "graph/graph.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"

namespace plait {
namespace {

void add_rope(Hash& h, const Rope& r) {
    h.add(static_cast<uint64_t>(r.n_rot)).add(r.interleaved);
    for (const double x : {r.base, r.scale, r.extrapolation, r.magnitude, r.beta_fast, r.beta_slow})
        h.add(std::bit_cast<uint64_t>(x));
    h.add(static_cast<uint64_t>(r.n_ctx_original));
    for (const int s : r.sections) h.add(static_cast<uint64_t>(s));
}

uint64_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// One overload per operation that has parameters; the rest hash nothing.
struct AddParameters {
    Hash& h;
    void operator()(const WeightOp& op) const { h.add(op.id); }
    void operator()(const StorageOp& op) const { h.add(op.index); }
    void operator()(const InputOp& op) const {
        h.add(static_cast<uint64_t>(op.id.field) << 16 | op.id.group);
    }
    void operator()(const WeightRowOp& op) const { h.add(static_cast<uint64_t>(op.row)); }
    void operator()(const RmsNormOp& op) const { h.add(bits(op.epsilon)); }
    void operator()(const LayerNormOp& op) const { h.add(bits(op.epsilon)); }
    void operator()(const NormQuantizeOp& op) const { h.add(bits(op.epsilon)); }
    void operator()(const GateQuantizeOp& op) const { h.add(static_cast<uint64_t>(op.how)); }
    void operator()(const L2NormOp& op) const { h.add(bits(op.epsilon)); }
    void operator()(const RopeTableOp& op) const { add_rope(h, op.rope); }
    void operator()(const RopeOp& op) const {
        h.add(static_cast<uint64_t>(op.n_rot)).add(op.interleaved);
    }
    void operator()(const AttendOp& op) const {
        for (const int n : {op.n_heads, op.n_kv_heads, op.key_dim, op.value_dim})
            h.add(static_cast<uint64_t>(n));
        h.add(bits(op.scale)).add(bits(op.softcap)).add(op.flash);
        h.add(op.sinks).add(op.values_in_keys).add(static_cast<uint64_t>(op.bias));
        h.add(bits(op.max_bias))
            .add(static_cast<uint64_t>(op.max_distance))
            .add(op.both_directions);
    }
    void operator()(const EditOp& op) const { h.add(op.index); }
    void operator()(const SliceOp& op) const { h.add(static_cast<uint64_t>(op.begin)); }
    void operator()(const ScaleOp& op) const { h.add(bits(op.factor)).add(bits(op.offset)); }
    void operator()(const SoftcapOp& op) const { h.add(bits(op.cap)); }
    void operator()(const ActivateOp& op) const { h.add(static_cast<uint64_t>(op.how)); }
    void operator()(const GateOp& op) const { h.add(static_cast<uint64_t>(op.how)); }
    void operator()(const ClampedSwigluOp& op) const { h.add(bits(op.alpha)).add(bits(op.limit)); }
    void operator()(const RouteOp& op) const {
        h.add(static_cast<uint64_t>(op.n_used)).add(op.renormalize).add(bits(op.scale));
        h.add(static_cast<uint64_t>(op.gating)).add(static_cast<uint64_t>(op.n_groups));
        h.add(static_cast<uint64_t>(op.n_groups_used));
    }
    void operator()(const RotateRowsOp& op) const {
        add_rope(h, op.rope);
        for (const int n : {op.n_heads, op.head_dim, op.begin}) h.add(static_cast<uint64_t>(n));
    }
    template <typename Op>
    void operator()(const Op&) const {}
};

struct Name {
    const char* operator()(const WeightOp&) const { return "weight"; }
    const char* operator()(const StorageOp&) const { return "storage"; }
    const char* operator()(const InputOp&) const { return "input"; }
    const char* operator()(const ReshapeOp&) const { return "reshape"; }
    const char* operator()(const EmbedOp&) const { return "embed"; }
    const char* operator()(const SelectRowsOp&) const { return "select_rows"; }
    const char* operator()(const RmsNormOp&) const { return "rms_norm"; }
    const char* operator()(const QuantizeRowsOp&) const { return "quantize_rows"; }
    const char* operator()(const LinearOp&) const { return "linear"; }
    const char* operator()(const RopeTableOp&) const { return "rope_table"; }
    const char* operator()(const RopeOp&) const { return "rope"; }
    const char* operator()(const StoreRowsOp&) const { return "store_rows"; }
    const char* operator()(const AttendOp&) const { return "attend"; }
    const char* operator()(const AttendSplitsOp&) const { return "attend_splits"; }
    const char* operator()(const AddOp&) const { return "add"; }
    const char* operator()(const MulOp&) const { return "mul"; }
    const char* operator()(const ScaleOp&) const { return "scale"; }
    const char* operator()(const SoftcapOp&) const { return "softcap"; }
    const char* operator()(const ActivateOp&) const { return "activate"; }
    const char* operator()(const GateOp&) const { return "gate"; }
    const char* operator()(const RouteOp&) const { return "route"; }
    const char* operator()(const ExpertLinearOp&) const { return "expert_linear"; }
    const char* operator()(const CombineOp&) const { return "combine"; }
    const char* operator()(const RotateRowsOp&) const { return "rotate_rows"; }
    const char* operator()(const CopyRowsOp&) const { return "copy_rows"; }
    const char* operator()(const EditOp&) const { return "edit"; }
    const char* operator()(const NormQuantizeOp&) const { return "norm_quantize"; }
    const char* operator()(const GateQuantizeOp&) const { return "gate_quantize"; }
    const char* operator()(const LinearAddOp&) const { return "linear_add"; }
    const char* operator()(const WeightRowOp&) const { return "weight_row"; }
    const char* operator()(const LayerNormOp&) const { return "layer_norm"; }
    const char* operator()(const L2NormOp&) const { return "l2_norm"; }
    const char* operator()(const HeadLinearOp&) const { return "head_linear"; }
    const char* operator()(const SubOp&) const { return "sub"; }
    const char* operator()(const RowSumOp&) const { return "row_sum"; }
    const char* operator()(const SliceOp&) const { return "slice"; }
    const char* operator()(const ConcatOp&) const { return "concat"; }
    const char* operator()(const ClampedSwigluOp&) const { return "clamped_swiglu"; }
    const char* operator()(const ShortConvOp&) const { return "short_conv"; }
    const char* operator()(const TokenShiftOp&) const { return "token_shift"; }
    const char* operator()(const SelectiveScanOp&) const { return "selective_scan"; }
    const char* operator()(const SsdScanOp&) const { return "ssd_scan"; }
    const char* operator()(const Wkv6Op&) const { return "wkv6"; }
    const char* operator()(const Wkv7Op&) const { return "wkv7"; }
    const char* operator()(const DeltaRuleOp&) const { return "delta_rule"; }
};

}  // namespace

const char* op_name(const Op& op) { return std::visit(Name{}, op); }

bool writes_storage(const Op& op) {
    return std::visit(
        []<typename T>(const T&) {
            return is_any_of<T, StoreRowsOp, CopyRowsOp, RotateRowsOp, ShortConvOp, TokenShiftOp,
                             SelectiveScanOp, SsdScanOp, Wkv6Op, Wkv7Op, DeltaRuleOp>;
        },
        op);
}

bool is_alias(const Op& op) {
    return std::visit(
        []<typename T>(const T&) {
            return is_any_of<T, ReshapeOp, WeightRowOp, StoreRowsOp, CopyRowsOp, RotateRowsOp>;
        },
        op);
}

const TensorType& Value::type() const { return graph->node(id).type; }
Extent Value::extent() const { return graph->node(id).extent; }

Value Graph::add(Op op, TensorType type, Extent extent, std::span<const Value> inputs) {
    Node node{.op = std::move(op), .type = type, .extent = extent};
    node.inputs.reserve(inputs.size());
    for (const Value& input : inputs) {
        PLAIT_CHECK(input.graph == this && input.id < nodes_.size());
        node.inputs.push_back(input.id);
    }
    nodes_.push_back(std::move(node));
    return {this, static_cast<NodeId>(nodes_.size() - 1)};
}

namespace {

template <typename Op>
std::optional<NodeId> find_source(std::span<const Node> nodes, const Op& op) {
    for (NodeId i = 0; i < nodes.size(); ++i)
        if (const Op* same = std::get_if<Op>(&nodes[i].op); same && *same == op) return i;
    return std::nullopt;
}

}  // namespace

Value Graph::weight(const Weight& weight) {
    PLAIT_CHECK(weight);
    if (const auto id = find_source(nodes_, WeightOp{weight.id})) return {this, *id};
    return add(WeightOp{weight.id}, weight.type, Extent::fixed, {});
}

Value Graph::storage(uint32_t index, const TensorType& type) {
    if (const auto id = find_source(nodes_, StorageOp{index})) return {this, *id};
    return add(StorageOp{index}, type, Extent::fixed, {});
}

Value Graph::input(InputId id, const TensorType& type, Extent extent) {
    if (const auto node = find_source(nodes_, InputOp{id})) return {this, *node};
    return add(InputOp{id}, type, extent, {});
}

void Graph::output(OutputId id, Value value) {
    PLAIT_CHECK(value.graph == this);
    outputs_.emplace_back(id, value.id);
}

void Graph::name(Value value, Role role, int layer) {
    PLAIT_CHECK(value.graph == this);
    nodes_[value.id].role = role;
    nodes_[value.id].layer = static_cast<int16_t>(layer);
}

uint64_t Graph::fingerprint() const {
    Hash h;
    for (const Node& node : nodes_) {
        h.add(node.op.index());
        std::visit(AddParameters{h}, node.op);
        h.add(static_cast<uint64_t>(node.type.dtype) << 8 | node.type.shape.rank);
        for (int i = 0; i < node.type.shape.rank; ++i)
            h.add(static_cast<uint64_t>(node.type.shape[i]));
        h.add(static_cast<uint64_t>(node.extent));
        for (const NodeId input : node.inputs) h.add(input);
        h.add(node.inputs.size());
    }
    for (const auto& [id, node] : outputs_) h.add(static_cast<uint64_t>(id) << 32 | node);
    return h.value();
}

void Graph::replace(std::vector<Node> nodes, std::vector<std::pair<OutputId, NodeId>> outputs) {
    for (NodeId i = 0; i < nodes.size(); ++i)
        for (const NodeId input : nodes[i].inputs) PLAIT_CHECK(input < i);
    for (const auto& [id, node] : outputs) PLAIT_CHECK(node < nodes.size());
    nodes_ = std::move(nodes);
    outputs_ = std::move(outputs);
}

}  // namespace plait
