// The ops that have a derivative, and what each needs.
//
//   template <>
//   struct Derivative<ops::Scale> {
//       static constexpr auto kReads = operands();
//       static void backward(const ops::Scale& op, NodeId node, Gradient dy, Walk& walk);
//   };
//
// kReads lists the operands whose values backward() reads. backward() adds to walk.gradient() of
// each operand through which a gradient flows; `dy` is the gradient of the node's value, [rows,
// ...]. A derivative that does not cover every form of its op has a function `refusal`, which
// returns the form, or null.
#pragma once

#include <span>

#include "gradient/walk.h"
#include "graph/graph.h"
#include "graph/ops.h"

namespace plait::gradient {

using Gradient = std::span<const float>;

template <typename T>
struct Derivative {};

template <typename T>
concept Differentiable = requires {
    Derivative<T>::kReads;
};
template <typename T>
concept Refusing = requires(const T& op, const Graph& graph) {
    Derivative<T>::refusal(op, graph);
};

// Declares the derivative of an op that reads the values of the listed operands.
#define PLAIT_DERIVATIVE(Op, ...)                                                 \
    template <>                                                                   \
    struct Derivative<Op> {                                                       \
        static constexpr auto kReads = operands(__VA_ARGS__);                     \
        static void backward(const Op& op, NodeId node, Gradient dy, Walk& walk); \
    }

// elementwise.cpp
PLAIT_DERIVATIVE(ops::Add);
PLAIT_DERIVATIVE(ops::Sub);
PLAIT_DERIVATIVE(ops::Mul, &ops::Mul::a, &ops::Mul::b);
PLAIT_DERIVATIVE(ops::Scale);
PLAIT_DERIVATIVE(ops::Softcap, &ops::Softcap::x);
PLAIT_DERIVATIVE(ops::Clamp, &ops::Clamp::x);
PLAIT_DERIVATIVE(ops::Activate, &ops::Activate::x);
PLAIT_DERIVATIVE(ops::Gate, &ops::Gate::g, &ops::Gate::up);
PLAIT_DERIVATIVE(ops::ClampedSwiglu, &ops::ClampedSwiglu::g, &ops::ClampedSwiglu::up);

// norm.cpp
PLAIT_DERIVATIVE(ops::RmsNorm, &ops::RmsNorm::x, &ops::RmsNorm::weight);
PLAIT_DERIVATIVE(ops::LayerNorm, &ops::LayerNorm::x, &ops::LayerNorm::weight);
PLAIT_DERIVATIVE(ops::L2Norm, &ops::L2Norm::x);
PLAIT_DERIVATIVE(ops::RowSum);

// linear.cpp
PLAIT_DERIVATIVE(ops::Linear);
PLAIT_DERIVATIVE(ops::HeadLinear);
PLAIT_DERIVATIVE(ops::Mix, &ops::Mix::x, &ops::Mix::weights);
PLAIT_DERIVATIVE(ops::ExpertLinear, &ops::ExpertLinear::routes);

// routing.cpp
PLAIT_DERIVATIVE(ops::Route, &ops::Route::logits, &ops::Route::expert_scale);
PLAIT_DERIVATIVE(ops::Combine, &ops::Combine::y, &ops::Combine::routes);

// rows.cpp
PLAIT_DERIVATIVE(ops::Reshape);
PLAIT_DERIVATIVE(ops::Slice);
PLAIT_DERIVATIVE(ops::Concat);
PLAIT_DERIVATIVE(ops::SelectRows);
PLAIT_DERIVATIVE(ops::StoreRows);
PLAIT_DERIVATIVE(ops::EditRows, &ops::EditRows::x, &ops::EditRows::rows);
PLAIT_DERIVATIVE(ops::Rope, &ops::Rope::table);
PLAIT_DERIVATIVE(ops::Hadamard);

// attention.cpp
template <>
struct Derivative<ops::Attend> {
    static constexpr auto kReads = operands(&ops::Attend::q, &ops::Attend::sinks);
    static const char* refusal(const ops::Attend& op, const Graph& graph);
    static void backward(const ops::Attend& op, NodeId node, Gradient dy, Walk& walk);
};

#undef PLAIT_DERIVATIVE

}  // namespace plait::gradient
