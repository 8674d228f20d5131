#include "backend/cpu/ops/operands.h"

namespace plait::cpu {
namespace {

ElementwiseArgs unary(NodeId x, const CpuNode& node, Binder& binder) {
    auto args = args_for<ElementwiseArgs>(node, binder);
    args.a = binder.operand(x);
    args.row_elements = row_elements(node.type);
    return args;
}

ElementwiseArgs binary(NodeId a, NodeId b, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = unary(a, node, binder);
    args.b = binder.operand(b);
    const Shape& shape = node.type.shape;
    const Shape& b_shape = binder.type(b).shape;
    if (b_shape == shape) return args;
    const bool by_row = b_shape.rank == 2 && binder.node(b).extent != Extent::fixed;
    if (b_shape.elements() == 1)
        args.b_repeat = INT64_MAX;
    else if (b_shape[-1] == 1)
        args.b_repeat = by_row ? row_elements(node.type) : shape[-1];
    if (binder.node(b).extent == Extent::fixed) args.b_period = b_shape.elements();
    return args;
}

}  // namespace

template <>
void bind(const ops::Add& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().add, binary(op.a, op.b, node, binder));
}

template <>
void bind(const ops::Sub& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().sub, binary(op.a, op.b, node, binder));
}

template <>
void bind(const ops::Mul& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().mul, binary(op.a, op.b, node, binder));
}

template <>
void bind(const ops::Scale& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.parameter = op.factor;
    args.second_parameter = op.offset;
    binder.call(node, binder.kernels().scale, args);
}

template <>
void bind(const ops::Softcap& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.parameter = op.cap;
    binder.call(node, binder.kernels().softcap, args);
}

template <>
void bind(const ops::Clamp& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.parameter = op.limit;
    binder.call(node, binder.kernels().clamp, args);
}

template <>
void bind(const ops::Activate& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.activation = op.activation;
    binder.call(node, binder.kernels().activate, args);
}

template <>
void bind(const ops::Gate& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = binary(op.g, op.up, node, binder);
    args.activation = op.activation;
    binder.call(node, binder.kernels().gate, args);
}

template <>
void bind(const ops::ClampedSwiglu& op, const CpuNode& node, Binder& binder) {
    ElementwiseArgs args = binary(op.g, op.up, node, binder);
    args.parameter = op.alpha;
    args.second_parameter = op.limit;
    binder.call(node, binder.kernels().clamped_swiglu, args);
}

template <>
void bind(const ops::Slice& op, const CpuNode& node, Binder& binder) {
    SliceArgs args{};
    args.x = binder.operand(op.x);
    args.y = binder.result(node);
    args.x_width = binder.type(op.x).shape[-1];
    args.begin = op.begin;
    args.vectors = vectors_of(node, node.type.shape);
    binder.call(node, binder.kernels().slice, args);
}

template <>
void bind(const ops::Concat& op, const CpuNode& node, Binder& binder) {
    const Shape& a = binder.type(op.a).shape;
    const Shape& b = binder.type(op.b).shape;
    ConcatArgs args{};
    args.a = binder.operand(op.a);
    args.b = binder.operand(op.b);
    args.y = binder.result(node);
    args.a_width = a[-1];
    args.vectors = vectors_of(node, node.type.shape);
    args.b_is_shared = b.elements() / b[-1] != a.elements() / a[-1];
    binder.call(node, binder.kernels().concat, args);
}

}  // namespace plait::cpu
