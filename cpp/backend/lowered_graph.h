// A graph in the ops of one backend. Planning reads the types, operands and properties of its
// nodes. The rest of a node is private to the backend that lowered the graph.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "graph/graph.h"

namespace plait {

class Executable;
struct Segment;

struct LoweredNode {
    const OpInfo* info = nullptr;
    TensorType type;
    Extent extent = Extent::fixed;
    Role role = Role::none;
    int16_t layer = -1;
    uint32_t first_operand = 0, n_operands = 0;  // in LoweredGraph::operands_
    // The op itself if it refers to something outside the graph.
    std::variant<std::monostate, ops::Weight, ops::Storage, ops::Input, ops::Edit, ops::Send,
                 ops::Receive>
        reference;
};

class LoweredGraph {
public:
    virtual ~LoweredGraph() = default;
    LoweredGraph(const LoweredGraph&) = delete;
    LoweredGraph& operator=(const LoweredGraph&) = delete;

    std::span<const LoweredNode> nodes() const { return nodes_; }
    const LoweredNode& node(NodeId id) const { return nodes_[id]; }
    std::span<const NodeId> operands(NodeId id) const {
        return std::span(operands_).subspan(nodes_[id].first_operand, nodes_[id].n_operands);
    }
    std::span<const std::pair<OutputId, NodeId>> outputs() const { return outputs_; }
    // Returns the node whose bytes hold the result of node `id`. Most nodes are their own root.
    NodeId root(NodeId id) const { return roots_[id]; }

    // Binds the kernel nodes of a segment. Packs the weights that no segment needed before.
    virtual std::unique_ptr<Executable> compile(const Segment& segment) = 0;

protected:
    template <typename OpVariant>
    LoweredGraph(std::span<const BasicNode<OpVariant>> nodes, GraphOutputs outputs)
        : outputs_(std::move(outputs)) {
        nodes_.reserve(nodes.size());
        roots_.reserve(nodes.size());
        for (const BasicNode<OpVariant>& node : nodes) add(node);
    }

private:
    template <typename OpVariant>
    void add(const BasicNode<OpVariant>& node) {
        LoweredNode& lowered = nodes_.emplace_back();
        lowered.info = &info_of(node.op);
        lowered.type = node.type;
        lowered.extent = node.extent;
        lowered.role = node.role;
        lowered.layer = node.layer;
        lowered.first_operand = static_cast<uint32_t>(operands_.size());
        for_each_operand(node.op, [&](NodeId id) { operands_.push_back(id); });
        lowered.n_operands = static_cast<uint32_t>(operands_.size()) - lowered.first_operand;
        std::visit(
            [&]<typename T>(const T& op) {
                if constexpr (std::is_constructible_v<decltype(lowered.reference),
                                                      std::in_place_type_t<T>, const T&>)
                    lowered.reference = op;
            },
            node.op);
        const NodeId aliased = aliased_operand(node.op);
        roots_.push_back(aliased == kNoNode ? static_cast<NodeId>(roots_.size()) : roots_[aliased]);
    }

    std::vector<LoweredNode> nodes_;
    std::vector<NodeId> operands_;
    std::vector<NodeId> roots_;
    GraphOutputs outputs_;
};

}  // namespace plait
