// Binds nodes to dispatches: the shader, the number of workgroups and the arguments. Everything
// that is known before a run is computed here.
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
#include "backend/vulkan/devices.h"
#include "backend/vulkan/frame.h"
#include "backend/vulkan/weights.h"
#include "base/error.h"
#include "base/text.h"
#include "graph/graph.h"

namespace plait::vulkan {

// Workgroups along one axis: `rows` times `items`, `per_group` of them per workgroup. Shaders loop
// with a stride of the number of workgroups, so a device's limit only makes each loop longer.
struct Axis {
    Rows rows;
    uint64_t items = 1;
    uint64_t per_group = 1;

    uint32_t groups(const Frame& frame) const;
};

// One dispatch to record.
struct Dispatch {
    std::string_view shader;
    std::vector<uint32_t> constants;  // specialization constants, by index
    std::array<Axis, 3> grid;
    NodeId node = 0;
    uint32_t stage = 0;      // dispatches of one stage may run at the same time
    bool continues = false;  // reads what the previous dispatch, of the same node, wrote
    std::vector<std::byte> args;
};

class Binder {
public:
    Binder(std::span<const Node> nodes, const Segment& segment, const Limits& limits)
        : nodes_(nodes), segment_(segment), limits_(limits) {}

    const Limits& limits() const { return limits_; }
    const Node& node(NodeId id) const { return nodes_[id]; }
    const TensorType& type(NodeId id) const { return node(id).type; }
    NodeId id_of(const Node& node) const { return static_cast<NodeId>(&node - nodes_.data()); }

    // Returns a reference to the first byte of a value that is not a weight.
    Ref ref(NodeId id) const;
    Ref result(const Node& node) const { return ref(id_of(node)); }
    // Returns a reference to the first float of an operand: a weight, a row or a reshaped view of
    // one, or another value.
    Ref operand(NodeId id);
    // Returns a weight as stored in the file, for products and embed.
    const Matrix& matrix(NodeId id);
    // Returns the values of a vector of weights on the host.
    std::vector<float> values(NodeId id) const;
    // Scratch memory of a node, in the arena. Nodes of one stage have disjoint scratch memory.
    Ref scratch(const Node& node, uint64_t bytes);
    uint64_t scratch_bytes() const { return scratch_bytes_; }
    // A table that the executable keeps with the arguments.
    template <typename T>
    Ref constant(const std::vector<T>& values) {
        return constant_bytes(std::as_bytes(std::span(values)));
    }

    template <typename Args>
    void dispatch(const Node& node, std::string_view shader,
                  std::initializer_list<uint32_t> constants, std::initializer_list<Axis> grid,
                  const Args& args) {
        static_assert(std::is_trivially_copyable_v<Args>);
        const NodeId id = segment_.first_node + id_of(node);
        const bool continues = !dispatches_.empty() && dispatches_.back().node == id;
        Dispatch& dispatch = dispatches_.emplace_back();
        dispatch.shader = shader;
        dispatch.continues = continues;
        dispatch.constants = constants;
        PLAIT_CHECK(grid.size() <= dispatch.grid.size());
        std::copy(grid.begin(), grid.end(), dispatch.grid.begin());
        dispatch.node = id;
        dispatch.stage = segment_.stages[id_of(node)];
        dispatch.args.resize(sizeof args);
        std::memcpy(dispatch.args.data(), &args, sizeof args);
    }
    std::vector<Dispatch> take() { return std::move(dispatches_); }
    std::vector<std::byte> take_constants() { return std::move(constants_); }

private:
    // Returns the store that holds a weight, and the weight's id in that store.
    std::pair<VulkanWeights&, WeightId> find(const ops::Weight& weight) const {
        return segment_.weights.find<VulkanWeights>(weight.id);
    }
    Ref constant_bytes(std::span<const std::byte> bytes);

    std::span<const Node> nodes_;
    const Segment& segment_;
    const Limits& limits_;
    std::vector<Dispatch> dispatches_;
    std::vector<std::byte> constants_;
    uint32_t scratch_stage_ = 0;  // the last stage that took scratch memory
    uint64_t scratch_used_ = 0;   // by that stage
    uint64_t scratch_bytes_ = 0;  // the largest of any stage
};

// Returns true if the shader supports heads of this size.
bool fits(const ops::Attend& op);

// Appends the dispatches of one node. ops/<family>.cpp specialises it for each op that the device
// computes, so an op without a shader does not link.
template <typename T>
void bind(const T& op, const Node& node, Binder& binder);

}  // namespace plait::vulkan
