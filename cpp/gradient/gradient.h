// The gradient of a scalar of a graph's result with respect to values of the graph. Weights,
// inputs, and cache rows that earlier calls stored are constants.
//
// make_gradient_plan() finds the nodes that lie between the values and the result. Each of them
// needs a derivative (derivatives/derivatives.h). run_gradient() then walks these nodes from the
// last to the first and adds to the gradient of each operand:
//
//   d operand += (d result of the node / d operand)^T d result of the node
//
// Rounding (of activations to int8 before a product, of keys and values to the type of a cache) has
// the derivative of the identity.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "gradient/forward.h"
#include "graph/graph.h"

namespace plait {

struct GradientPlan {
    NodeId result = 0;
    std::vector<NodeId> wanted;
    std::vector<NodeId> kept;  // nodes whose values the step must keep, ascending
    std::vector<bool> flows;   // by node: depends on a wanted value, and the result depends on it
};

// `graph` is as its model built it, with steering and before any fusion. Throws UnsupportedError,
// with the names of the op and of the architecture, if a node between a wanted value and the result
// has no derivative.
GradientPlan make_gradient_plan(const Graph& graph, NodeId result, std::span<const NodeId> wanted,
                                std::string_view architecture);

// Returns the gradient of each wanted value, [rows, ...], given that of the result. A value that
// the result does not depend on has a gradient of zeros.
std::vector<std::vector<float>> run_gradient(const Graph& graph, const GradientPlan& plan,
                                             const ForwardStep& step, std::vector<float> of_result);

}  // namespace plait
