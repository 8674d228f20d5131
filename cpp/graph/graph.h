// A graph: ops with the shapes of their results, in the order of execution. Contains no data of a
// step and no tensor bytes.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "graph/role.h"
#include "graph/value.h"
#include "tensor/tensor.h"

namespace plait {

enum class OutputId : uint16_t { logits, embeddings, first_captured };  // see capture.h

// A node of a graph. A backend that lowers a graph uses a variant with additional ops.
template <typename OpVariant>
struct BasicNode {
    OpVariant op;
    TensorType type;
    Extent extent = Extent::fixed;
    Role role = Role::none;
    int16_t layer = -1;
    bool operator==(const BasicNode&) const = default;
};
using Node = BasicNode<Op>;

using GraphOutputs = std::vector<std::pair<OutputId, NodeId>>;

class Graph {
public:
    // Each weight, storage and input has one node, even if it is requested several times.
    Value weight(const Weight& weight);
    Value storage(uint32_t index, const TensorType& type);
    Value input(InputId id, const TensorType& type, Extent extent);

    // Appends a node. Its operands must be nodes of this graph.
    Value add(Op op, const TensorType& type, Extent extent);
    void output(OutputId id, Value value);
    // Names the value in dumps, captures and tests. A second name replaces the first.
    void name(Value value, Role role, int layer = -1);

    const Node& node(NodeId id) const { return nodes_[id]; }
    std::span<const Node> nodes() const { return nodes_; }
    std::span<const std::pair<OutputId, NodeId>> outputs() const { return outputs_; }

    // True if both have the same nodes, with the same names, and the same outputs.
    bool operator==(const Graph&) const = default;

    // For rewrites: a new node list. The operands of every node come before it.
    void replace(std::vector<Node> nodes, GraphOutputs outputs);

private:
    std::vector<Node> nodes_;
    GraphOutputs outputs_;
};

}  // namespace plait
