#include "backend/cpu/ops/operands.h"

namespace plait::cpu {
namespace {

void bind_linear(const ops::Linear& op, OptionalOperand residual, const CpuNode& node,
                 Binder& binder) {
    auto args = args_for<LinearArgs>(node, binder);
    args.x = binder.ref(op.x);
    args.has_residual = static_cast<bool>(residual);
    if (residual) args.residual = binder.ref(*residual);
    args.has_bias = static_cast<bool>(op.bias);
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.weight = binder.matrix(op.weight);
    args.threads = binder.n_threads();
    const auto scratch =
        static_cast<uint64_t>(product_scratch_bytes(args.weight) + kRedoFloats * 4);
    binder.call(node, binder.kernels().linear, args, scratch).redo = kErased<linear_redo>;
}

void set_rows(QuantizeRowsArgs& args, NodeId rows, const CpuNode& node, const Binder& binder) {
    const Shape& x = binder.type(rows).shape;
    args.x = binder.ref(rows);
    args.y = binder.result(node);
    args.extent = node.extent;
    args.fixed_rows = x[0];
    args.rows_per_item = x.rank == 3 ? x[1] : 1;
    args.columns = x[-1];
}

}  // namespace

template <>
void bind(const ops::Linear& op, const CpuNode& node, Binder& binder) {
    bind_linear(op, {}, node, binder);
}

template <>
void bind(const ops::LinearAdd& op, const CpuNode& node, Binder& binder) {
    bind_linear({op.x, op.weight, op.bias}, OptionalOperand(op.residual.id), node, binder);
}

template <>
void bind(const ops::HeadLinear& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<HeadLinearArgs>(node, binder);
    args.x = binder.ref(op.x);
    args.weight = binder.matrix(op.weight);
    args.threads = binder.n_threads();
    binder.call(node, binder.kernels().head_linear, args,
                static_cast<uint64_t>(product_scratch_bytes(args.weight)));
}

template <>
void bind(const ops::Mix& op, const CpuNode& node, Binder& binder) {
    const Shape& weights = binder.type(op.weights).shape;
    auto args = args_for<MixArgs>(node, binder);
    args.x = binder.ref(op.x);
    args.weights = binder.ref(op.weights);
    args.inputs = weights[2];
    args.outputs = weights[1];
    args.width = node.type.shape[2];
    binder.call(node, binder.kernels().mix, args);
}

template <>
void bind(const QuantizeRows& op, const CpuNode& node, Binder& binder) {
    QuantizeRowsArgs args{};
    set_rows(args, op.x, node, binder);
    binder.call(node, binder.kernels().quantize_rows, args);
}

template <>
void bind(const RoundRows& op, const CpuNode& node, Binder& binder) {
    RoundRowsArgs args{};
    set_rows(args, op.x, node, binder);
    args.parts = op.parts;
    binder.call(node, binder.kernels().round_rows, args);
}

template <>
void bind(const GateQuantize& op, const CpuNode& node, Binder& binder) {
    const TensorType& type = binder.type(op.g);
    GateQuantizeArgs args{};
    args.g = binder.ref(op.g);
    args.up = binder.ref(op.up);
    args.y = binder.result(node);
    args.activation = op.activation;
    args.extent = node.extent;
    args.fixed_rows = type.shape[0];
    args.columns = type.shape[-1];
    args.rows_per_item = row_elements(type) / args.columns;
    binder.call(node, binder.kernels().gate_quantize, args);
}

}  // namespace plait::cpu
