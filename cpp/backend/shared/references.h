// Sets the references to operands in the kernel arguments of ops with many operands. The kernel
// arguments of every backend have the same field names as the op.
#pragma once

#include <concepts>

#include "graph/graph.h"

namespace plait {

// Sets the references of the operands.
template <typename Args, typename Binder>
void set_references(Args& args, const ops::Attend& op, Binder& binder) {
    args.q = binder.ref(op.q);
    args.keys = binder.ref(op.keys);
    args.values = binder.ref(op.values ? *op.values : op.keys.id);
    args.token_begin = binder.ref(op.token_begin);
    args.runs = binder.ref(op.runs);
    args.run_begin = binder.ref(op.run_begin);
    args.first = binder.ref(op.first);
    args.last = binder.ref(op.last);
    args.has_sinks = static_cast<bool>(op.sinks);
    if (op.sinks) args.sinks = binder.operand(*op.sinks);
    if (op.positions) args.positions = binder.ref(*op.positions);
    if (op.key_positions) args.key_positions = binder.ref(*op.key_positions);
    if (op.key_begin) args.key_begin = binder.ref(*op.key_begin);
    if (op.bias) args.bias = binder.operand(*op.bias);
}

// For recurrent ops: sets the references of the operands and the result, except those of the
// states.
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
