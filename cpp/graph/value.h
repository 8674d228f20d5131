// Values of a graph: handles for code that builds one, and operands for the ops that read them.
#pragma once

#include <cstdint>

#include "graph/op_enums.h"
#include "tensor/tensor.h"

namespace plait {

class Graph;
using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

// A handle to the result of a node. Cheap to copy; valid as long as its graph.
struct Value {
    Graph* graph = nullptr;
    NodeId id = 0;
    const TensorType& type() const;
    const Shape& shape() const { return type().shape; }
    Extent extent() const;
    explicit operator bool() const { return graph != nullptr; }
};

// A value that an op reads.
struct Operand {
    NodeId id = kNoNode;

    constexpr Operand() = default;
    constexpr explicit Operand(NodeId node) : id(node) {}
    Operand(const Value& value) : id(value.id) {}
    constexpr operator NodeId() const { return id; }
    bool operator==(const Operand&) const = default;
};

// An optional operand of an op.
struct OptionalOperand {
    NodeId id = kNoNode;

    constexpr OptionalOperand() = default;
    constexpr explicit OptionalOperand(NodeId node) : id(node) {}
    OptionalOperand(const Value& value) : id(value ? value.id : kNoNode) {}
    constexpr explicit operator bool() const { return id != kNoNode; }
    constexpr NodeId operator*() const { return id; }
    bool operator==(const OptionalOperand&) const = default;
};

}  // namespace plait
