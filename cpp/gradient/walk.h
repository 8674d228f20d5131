// The state of a walk from the result of a graph to the wanted values.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "gradient/forward.h"
#include "gradient/gradient.h"
#include "graph/graph.h"

namespace plait::gradient {

// Returns the node whose elements a reshape, or a chain of reshapes, refers to.
NodeId without_reshapes(const Graph& graph, NodeId id);

class Walk {
public:
    Walk(const Graph& graph, const GradientPlan& plan, const ForwardStep& step)
        : graph_(graph), plan_(plan), step_(step), gradients_(graph.nodes().size()) {}

    const ForwardStep& step() const { return step_; }
    const Node& node(NodeId id) const { return graph_.node(id); }
    // Rows of the node's value in this step, and elements of a row. A fixed value has one row. The
    // value of a StoreRows stands for the rows that it writes.
    int64_t rows(NodeId id) const;
    int64_t row_width(NodeId id) const;
    size_t elements(NodeId id) const { return static_cast<size_t>(rows(id) * row_width(id)); }

    // The gradient of an operand, to add to; empty if no gradient flows through it.
    std::span<float> gradient(NodeId id);
    // Takes the gradient of a node; empty if none of its readers has one.
    std::vector<float> take(NodeId id);

    // The value of an operand that the derivative of its reader lists in kReads.
    std::span<const float> value(NodeId id);
    // An input of integers.
    std::span<const int32_t> integers(NodeId id) const;

private:
    std::span<const float> constant(NodeId id);

    const Graph& graph_;
    const GradientPlan& plan_;
    const ForwardStep& step_;
    std::vector<std::vector<float>> gradients_;       // by node
    std::map<NodeId, std::vector<float>> constants_;  // dequantised weights and float inputs
};

}  // namespace plait::gradient
