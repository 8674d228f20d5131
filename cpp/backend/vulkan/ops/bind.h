// From a node to a dispatch: every op has a bind() in ops/<op>.cpp that says which shader runs, over
// how many workgroups, with which arguments. All that can be known before a run is settled here.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/bind_computed.h"
#include "backend/vulkan/frame.h"
#include "backend/vulkan/limits.h"
#include "backend/vulkan/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::vulkan {

// Workgroups along one axis: `rows` times `items`, `per_group` of them a workgroup. Shaders step on
// by the number of workgroups, so more than a device takes are merely done in turns.
struct Axis {
    Rows rows;
    uint64_t items = 1;
    uint64_t per_group = 1;

    uint32_t groups(const Frame& frame) const;
};

// One dispatch to be recorded.
struct Step {
    std::string_view shader;
    std::vector<uint32_t> constants;  // of specialization, from 0 on
    std::array<Axis, 3> grid;
    NodeId node = 0;
    uint32_t stage = 0;    // dispatches of one stage may run at the same time
    bool goes_on = false;  // with what the step before it, of the same node, has written
    std::vector<std::byte> args;
};

class Binder {
public:
    Binder(const Segment& segment, const Limits& limits) : segment_(segment), limits_(limits) {}

    const Limits& limits() const { return limits_; }
    const Graph& graph() const { return segment_.graph; }
    const Node& node(NodeId id) const { return graph().node(id); }
    const TensorType& type(NodeId id) const { return node(id).type; }
    NodeId id_of(const Node& node) const {
        return static_cast<NodeId>(&node - graph().nodes().data());
    }

    // First byte of a value (activations, inputs, outputs, caches).
    Ref ref(NodeId id) const;
    // A float operand: a weight, perhaps reshaped or one row of it, or a value.
    Ref operand(NodeId id);
    // A weight as the file stores it, for products and embed.
    const Matrix& matrix(NodeId id);
    // The values of a vector, on the host.
    std::vector<float> values(NodeId id) const;
    // Working memory of a node, in the arena; nodes of one stage have it side by side.
    Ref scratch(const Node& node, uint64_t bytes);
    uint64_t scratch_bytes() const { return scratch_bytes_; }
    // A table that the executable keeps beside the arguments.
    template <typename T>
    Ref constant(const std::vector<T>& values) {
        return constant_bytes(std::as_bytes(std::span(values)));
    }

    template <typename Args>
    void step(const Node& node, std::string_view shader, std::initializer_list<uint32_t> constants,
              std::initializer_list<Axis> grid, const Args& args) {
        static_assert(std::is_trivially_copyable_v<Args>);
        const NodeId id = id_of(node);
        const bool goes_on = !steps_.empty() && steps_.back().node == id;
        Step& step = steps_.emplace_back();
        step.shader = shader;
        step.goes_on = goes_on;
        step.constants = constants;
        PLAIT_CHECK(grid.size() <= step.grid.size());
        std::copy(grid.begin(), grid.end(), step.grid.begin());
        step.node = id;
        step.stage = segment_.stages[step.node];
        step.args.resize(sizeof args);
        std::memcpy(step.args.data(), &args, sizeof args);
    }
    std::vector<Step> take() { return std::move(steps_); }
    std::vector<std::byte> take_constants() { return std::move(constants_); }

private:
    Ref constant_bytes(std::span<const std::byte> bytes);
    // The store that has a weight, and the weight's number there.
    std::pair<VulkanWeights&, WeightId> find(WeightId id) const;

    const Segment& segment_;
    const Limits& limits_;
    std::vector<Step> steps_;
    std::vector<std::byte> constants_;
    uint32_t scratch_stage_ = 0;  // of the nodes that have asked for scratch last
    uint64_t scratch_used_ = 0;   // by them
    uint64_t scratch_bytes_ = 0;  // by any stage
};

// Weights, storage, inputs and views of them need no step.
template <typename Op>
NoKernel bind(const Op& op, const Node&, Binder&) {
    throw UnsupportedError(text("vulkan: no shader for ", op_name(op)));
}
// Whether the shader is made for heads of that size.
bool fits(const AttendOp&);

void bind(const ActivateOp&, const Node&, Binder&);
void bind(const AddOp&, const Node&, Binder&);
void bind(const AttendOp&, const Node&, Binder&);
void bind(const ClampedSwigluOp&, const Node&, Binder&);
void bind(const CombineOp&, const Node&, Binder&);
void bind(const ConcatOp&, const Node&, Binder&);
void bind(const CopyRowsOp&, const Node&, Binder&);
void bind(const DeltaRuleOp&, const Node&, Binder&);
void bind(const EmbedOp&, const Node&, Binder&);
void bind(const ExpertLinearOp&, const Node&, Binder&);
void bind(const GateOp&, const Node&, Binder&);
void bind(const HeadLinearOp&, const Node&, Binder&);
void bind(const L2NormOp&, const Node&, Binder&);
void bind(const LayerNormOp&, const Node&, Binder&);
void bind(const LinearAddOp&, const Node&, Binder&);
void bind(const LinearOp&, const Node&, Binder&);
void bind(const MulOp&, const Node&, Binder&);
void bind(const RmsNormOp&, const Node&, Binder&);
void bind(const RopeOp&, const Node&, Binder&);
void bind(const RopeTableOp&, const Node&, Binder&);
void bind(const RotateRowsOp&, const Node&, Binder&);
void bind(const RouteOp&, const Node&, Binder&);
void bind(const RowSumOp&, const Node&, Binder&);
void bind(const ScaleOp&, const Node&, Binder&);
void bind(const SelectRowsOp&, const Node&, Binder&);
void bind(const SelectiveScanOp&, const Node&, Binder&);
void bind(const ShortConvOp&, const Node&, Binder&);
void bind(const SliceOp&, const Node&, Binder&);
void bind(const SoftcapOp&, const Node&, Binder&);
void bind(const SsdScanOp&, const Node&, Binder&);
void bind(const StoreRowsOp&, const Node&, Binder&);
void bind(const SubOp&, const Node&, Binder&);
void bind(const TokenShiftOp&, const Node&, Binder&);
void bind(const Wkv6Op&, const Node&, Binder&);
void bind(const Wkv7Op&, const Node&, Binder&);

}  // namespace plait::vulkan
