// The operands of recurrent ops as references in kernel arguments. The arguments of every backend
// name them as the op does.
#pragma once

#include <concepts>

#include "graph/graph.h"

namespace plait {

// Sets the references of a recurrent op's operands and result, except those of its states.
template <typename Args, typename Node, typename Binder>
void set_references(Args& args, const ops::ShortConv& op, const Node& node, Binder& binder) {
    args.x = binder.operand(op.x);
    args.weight = binder.operand(op.weight);
    args.has_bias = static_cast<bool>(op.bias);
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.y = binder.result(node);
}

template <typename Args, typename Node, typename Binder>
void set_references(Args& args, const ops::TokenShift& op, const Node& node, Binder& binder) {
    args.x = binder.operand(op.x);
    args.y = binder.result(node);
}

template <typename Args, typename Op, typename Node, typename Binder>
requires std::same_as<Op, ops::SelectiveScan> || std::same_as<Op, ops::SsdScan>
void set_references(Args& args, const Op& op, const Node& node, Binder& binder) {
    args.x = binder.operand(op.x);
    args.dt = binder.operand(op.dt);
    args.a = binder.operand(op.a);
    args.b = binder.operand(op.b);
    args.c = binder.operand(op.c);
    args.d = binder.operand(op.d);
    args.y = binder.result(node);
}

template <typename Args, typename Node, typename Binder>
void set_references(Args& args, const ops::Wkv6& op, const Node& node, Binder& binder) {
    args.r = binder.operand(op.r);
    args.k = binder.operand(op.k);
    args.v = binder.operand(op.v);
    args.w = binder.operand(op.w);
    args.u = binder.operand(op.u);
    args.y = binder.result(node);
}

template <typename Args, typename Node, typename Binder>
void set_references(Args& args, const ops::Wkv7& op, const Node& node, Binder& binder) {
    args.r = binder.operand(op.r);
    args.w = binder.operand(op.w);
    args.k = binder.operand(op.k);
    args.v = binder.operand(op.v);
    args.a = binder.operand(op.a);
    args.b = binder.operand(op.b);
    args.y = binder.result(node);
}

template <typename Args, typename Node, typename Binder>
void set_references(Args& args, const ops::DeltaRule& op, const Node& node, Binder& binder) {
    args.q = binder.operand(op.q);
    args.k = binder.operand(op.k);
    args.v = binder.operand(op.v);
    args.g = binder.operand(op.g);
    args.beta = binder.operand(op.beta);
    args.y = binder.result(node);
}

}  // namespace plait
