// A recipe: which ops run on which shapes, in which order. Holds no step data and no tensor bytes.
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

// A backend that lowers a graph has nodes of more kinds than a model has.
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
    // A weight, a storage and an input each have one node however often they are requested.
    Value weight(const Weight& weight);
    Value storage(uint32_t index, const TensorType& type);
    Value input(InputId id, const TensorType& type, Extent extent);

    // Appends a node. Its operands must be nodes of this graph.
    Value add(Op op, const TensorType& type, Extent extent);
    void output(OutputId id, Value value);
    // Names the value for people, captures and tests; a second name replaces the first.
    void name(Value value, Role role, int layer = -1);

    const Node& node(NodeId id) const { return nodes_[id]; }
    std::span<const Node> nodes() const { return nodes_; }
    std::span<const std::pair<OutputId, NodeId>> outputs() const { return outputs_; }

    // Whether both have the same nodes, with the same names, and the same outputs.
    bool operator==(const Graph&) const = default;

    // For rewrites: a new node list. The operands of every node come before it.
    void replace(std::vector<Node> nodes, GraphOutputs outputs);

private:
    std::vector<Node> nodes_;
    GraphOutputs outputs_;
};

}  // namespace plait
