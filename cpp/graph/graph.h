// A recipe: which operations, on which shapes, in which order. Holds no step data and no bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "graph/role.h"
#include "tensor/tensor.h"
#include "tensor/weight_source.h"

namespace plait {

// What axis 0 of a value counts. The size in the shape is the plan's capacity; a run computes only
// the rows that exist in that step.
enum class Extent : uint8_t { fixed, tokens, outputs, moves };

// The data that changes every step. `group` tells one memory group's rows from another's.
enum class InputField : uint8_t {
    tokens,
    embeddings,
    positions,      // by token
    token_begin,    // by sequence of the piece, + 1
    output_tokens,  // by output
    write_rows,
    first,
    last,  // by token, per attention group
    runs,
    run_begin,  // by run; by sequence, + 1
    key_positions,
    key_begin,  // by key; by sequence, + 1
    read_states,
    write_states,  // by sequence, per recurrent group
    from_rows,
    to_rows,
    deltas,         // by move
    adapter_scale,  // one number; `group` says which of the adapter set
    control,        // by element of the residual stream; `group` is the layer
};
struct InputId {
    InputField field;
    uint16_t group = 0;
    friend bool operator==(const InputId&, const InputId&) = default;
};
enum class OutputId : uint16_t { logits, embeddings, first_captured };  // see capture.h

// A weight as the architecture knows it: a number and a type. Nothing where optional and absent.
struct Weight {
    static constexpr WeightId kNone = UINT32_MAX;
    WeightId id = kNone;
    TensorType type;
    explicit operator bool() const { return id != kNone; }
};

// ---- Parameters, typed per operation. What each computes is said at its function in ops.h. ----

enum class Activation : uint8_t {
    silu,
    gelu,
    gelu_tanh,
    relu,
    relu_squared,
    sigmoid,
    tanh,
    softplus,
    exp
};
// What attention adds to a score for the distance between query and key.
enum class PositionBias : uint8_t { none, alibi, buckets };
// How expert scores become weights: softmax over all experts, a sigmoid each, or a softmax over the
// chosen ones.
enum class Gating : uint8_t { softmax, sigmoid, softmax_chosen };

struct Rope {
    int n_rot = 0;  // leading elements of a head that are rotated
    double base = 10000.0;
    double scale = 1.0;        // positions are multiplied by this (linear scaling: 1 / factor)
    bool interleaved = false;  // pairs (2i, 2i+1); otherwise (i, i + n_rot / 2)
    // YaRN, arXiv:2309.00071. Off when extrapolation is 0.
    double extrapolation = 0.0;
    double magnitude = 1.0;  // multiplies cos and sin
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    int64_t n_ctx_original = 0;
    int sections[4] = {0, 0, 0, 0};  // M-RoPE: pairs per axis; all zero: one axis
    friend bool operator==(const Rope&, const Rope&) = default;
};

struct WeightOp {
    WeightId id;
    friend bool operator==(const WeightOp&, const WeightOp&) = default;
};
struct StorageOp {
    uint32_t index;
    friend bool operator==(const StorageOp&, const StorageOp&) = default;
};  // into MemoryLayout::storage
struct InputOp {
    InputId id;
    friend bool operator==(const InputOp&, const InputOp&) = default;
};
struct ReshapeOp {
    friend bool operator==(const ReshapeOp&, const ReshapeOp&) = default;
};
struct EmbedOp {
    friend bool operator==(const EmbedOp&, const EmbedOp&) = default;
};
struct SelectRowsOp {
    friend bool operator==(const SelectRowsOp&, const SelectRowsOp&) = default;
};
struct WeightRowOp {
    int64_t row;
    friend bool operator==(const WeightRowOp&, const WeightRowOp&) = default;
};
struct RmsNormOp {
    float epsilon;
    friend bool operator==(const RmsNormOp&, const RmsNormOp&) = default;
};
struct LayerNormOp {
    float epsilon;
    friend bool operator==(const LayerNormOp&, const LayerNormOp&) = default;
};
struct L2NormOp {
    float epsilon;
    friend bool operator==(const L2NormOp&, const L2NormOp&) = default;
};
struct QuantizeRowsOp {
    friend bool operator==(const QuantizeRowsOp&, const QuantizeRowsOp&) = default;
};
struct LinearOp {
    friend bool operator==(const LinearOp&, const LinearOp&) = default;
};
struct RopeTableOp {
    Rope rope;
    friend bool operator==(const RopeTableOp&, const RopeTableOp&) = default;
};
struct RopeOp {
    int n_rot;
    bool interleaved;
    friend bool operator==(const RopeOp&, const RopeOp&) = default;
};
struct StoreRowsOp {
    friend bool operator==(const StoreRowsOp&, const StoreRowsOp&) = default;
};
struct AttendOp {
    int n_heads;
    int n_kv_heads;
    int key_dim;
    int value_dim;
    float scale;
    float softcap;  // 0: none
    bool flash;     // one pass with a running softmax; otherwise scores first, then their softmax
    bool sinks = false;           // each input below is there or not as these say
    bool values_in_keys = false;  // a value is the first value_dim elements of its key (MLA)
    PositionBias bias = PositionBias::none;
    float max_bias = 0.0f;         // of alibi
    int max_distance = 0;          // of buckets: farther keys share the last one
    bool both_directions = false;  // of buckets: later keys have half of them
    friend bool operator==(const AttendOp&, const AttendOp&) = default;
};
// Sums over splits of the keys, for the attention that takes them to merge. Made when a plan is
// compiled, never by a model; what the result holds is the backend's affair.
struct AttendSplitsOp {
    AttendOp how;
    friend bool operator==(const AttendSplitsOp&, const AttendSplitsOp&) = default;
};
struct AddOp {
    friend bool operator==(const AddOp&, const AddOp&) = default;
};
struct MulOp {
    friend bool operator==(const MulOp&, const MulOp&) = default;
};
struct SubOp {
    friend bool operator==(const SubOp&, const SubOp&) = default;
};
struct RowSumOp {
    friend bool operator==(const RowSumOp&, const RowSumOp&) = default;
};
struct SliceOp {
    int64_t begin;
    friend bool operator==(const SliceOp&, const SliceOp&) = default;
};
struct ConcatOp {
    friend bool operator==(const ConcatOp&, const ConcatOp&) = default;
};
struct HeadLinearOp {
    friend bool operator==(const HeadLinearOp&, const HeadLinearOp&) = default;
};
struct ScaleOp {
    float factor;
    float offset = 0.0f;
    friend bool operator==(const ScaleOp&, const ScaleOp&) = default;
};
struct SoftcapOp {
    float cap;
    friend bool operator==(const SoftcapOp&, const SoftcapOp&) = default;
};
struct ActivateOp {
    Activation how;
    friend bool operator==(const ActivateOp&, const ActivateOp&) = default;
};
struct GateOp {
    Activation how;
    friend bool operator==(const GateOp&, const GateOp&) = default;
};
struct ClampedSwigluOp {
    float alpha;
    float limit;
    friend bool operator==(const ClampedSwigluOp&, const ClampedSwigluOp&) = default;
};
struct RouteOp {
    int n_used;
    bool renormalize;  // chosen weights sum to one
    float scale;
    Gating gating = Gating::softmax;
    int n_groups = 1;       // of neighbouring experts, of which only the best
    int n_groups_used = 1;  // so many are chosen from; a group counts by its two best experts
    friend bool operator==(const RouteOp&, const RouteOp&) = default;
};
struct ExpertLinearOp {
    friend bool operator==(const ExpertLinearOp&, const ExpertLinearOp&) = default;
};
struct CombineOp {
    friend bool operator==(const CombineOp&, const CombineOp&) = default;
};
struct ShortConvOp {
    friend bool operator==(const ShortConvOp&, const ShortConvOp&) = default;
};
struct TokenShiftOp {
    friend bool operator==(const TokenShiftOp&, const TokenShiftOp&) = default;
};
struct SelectiveScanOp {
    friend bool operator==(const SelectiveScanOp&, const SelectiveScanOp&) = default;
};
struct SsdScanOp {
    friend bool operator==(const SsdScanOp&, const SsdScanOp&) = default;
};
struct Wkv6Op {
    friend bool operator==(const Wkv6Op&, const Wkv6Op&) = default;
};
struct Wkv7Op {
    friend bool operator==(const Wkv7Op&, const Wkv7Op&) = default;
};
struct DeltaRuleOp {
    friend bool operator==(const DeltaRuleOp&, const DeltaRuleOp&) = default;
};
// What backends fuse; each is the one after the other, in the same bits.
struct NormQuantizeOp {
    float epsilon;
    friend bool operator==(const NormQuantizeOp&, const NormQuantizeOp&) = default;
};  // quantize_rows(rms_norm(x))
struct GateQuantizeOp {
    Activation how;
    friend bool operator==(const GateQuantizeOp&, const GateQuantizeOp&) = default;
};  // quantize_rows(gate(g, up))
struct LinearAddOp {
    friend bool operator==(const LinearAddOp&, const LinearAddOp&) = default;
};  // x W^T (+ bias) + residual: [x, W, residual, bias]
struct RotateRowsOp {
    Rope rope;
    int n_heads;
    int head_dim;
    int begin = 0;  // elements of a head before those that are rotated
    friend bool operator==(const RotateRowsOp&, const RotateRowsOp&) = default;
};
struct CopyRowsOp {
    friend bool operator==(const CopyRowsOp&, const CopyRowsOp&) = default;
};
// What the caller makes of a value, on the host; see Editor. Put into a graph by insert_edits().
struct EditOp {
    uint16_t index;  // into the edits of the call
    friend bool operator==(const EditOp&, const EditOp&) = default;
};

using Op =
    std::variant<WeightOp, StorageOp, InputOp, ReshapeOp, WeightRowOp, EmbedOp, SelectRowsOp,
                 RmsNormOp, LayerNormOp, L2NormOp, QuantizeRowsOp, LinearOp, HeadLinearOp,
                 RopeTableOp, RopeOp, StoreRowsOp, AttendOp, AttendSplitsOp, AddOp, SubOp, MulOp,
                 RowSumOp, SliceOp, ConcatOp, ScaleOp, SoftcapOp, ActivateOp, GateOp,
                 ClampedSwigluOp, RouteOp, ExpertLinearOp, CombineOp, ShortConvOp, TokenShiftOp,
                 SelectiveScanOp, SsdScanOp, Wkv6Op, Wkv7Op, DeltaRuleOp, RotateRowsOp, CopyRowsOp,
                 EditOp, NormQuantizeOp, GateQuantizeOp, LinearAddOp>;

template <typename T, typename... Ops>
constexpr bool is_any_of = (std::is_same_v<T, Ops> || ...);

const char* op_name(const Op& op);  // "rms_norm"
// Whether running it changes a cache, and it is therefore needed whoever reads its result.
bool writes_storage(const Op& op);
// Whether the result is the bytes of the first input, or some of them.
bool is_alias(const Op& op);

using NodeId = uint32_t;

struct Node {
    Op op;
    TensorType type;
    Extent extent = Extent::fixed;
    std::vector<NodeId> inputs;
    Role role = Role::none;
    int16_t layer = -1;
    uint8_t device = 0;  // of a backend with several: which of them computes it
};

class Graph;

// A handle to a node's result. Cheap to copy; valid as long as its graph.
struct Value {
    Graph* graph = nullptr;
    NodeId id = 0;
    const TensorType& type() const;
    const Shape& shape() const { return type().shape; }
    Extent extent() const;
    explicit operator bool() const { return graph != nullptr; }
};

class Graph {
public:
    // Each weight, storage and input is one node however often it is asked for.
    Value weight(const Weight& weight);
    Value storage(uint32_t index, const TensorType& type);
    Value input(InputId id, const TensorType& type, Extent extent);

    Value add(Op op, TensorType type, Extent extent, std::span<const Value> inputs);
    void output(OutputId id, Value value);
    // Names the value for people, captures and tests; the last name wins.
    void name(Value value, Role role, int layer = -1);

    const Node& node(NodeId id) const { return nodes_[id]; }
    std::span<const Node> nodes() const { return nodes_; }
    std::span<const std::pair<OutputId, NodeId>> outputs() const { return outputs_; }

    // Equal for graphs of equal operations, parameters, shapes and edges. Equal keys must give
    // equal fingerprints.
    uint64_t fingerprint() const;

    // For rewrites: a new node list. Every node's inputs come before it.
    void replace(std::vector<Node> nodes, std::vector<std::pair<OutputId, NodeId>> outputs);
    void set_device(NodeId id, uint8_t device) { nodes_[id].device = device; }

private:
    std::vector<Node> nodes_;
    std::vector<std::pair<OutputId, NodeId>> outputs_;
};

}  // namespace plait
