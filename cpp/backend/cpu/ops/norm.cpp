#include "backend/cpu/ops/operands.h"

namespace plait::cpu {
namespace {

NormArgs norm(NodeId x, OptionalOperand weight, OptionalOperand bias, float epsilon,
              const CpuNode& node, Binder& binder) {
    NormArgs args{};
    args.x = binder.operand(x);
    args.y = binder.result(node);
    args.vectors = vectors_of(node, binder.type(x).shape);
    args.epsilon = epsilon;
    args.has_weight = static_cast<bool>(weight);
    args.has_bias = static_cast<bool>(bias);
    if (weight) {
        args.weight = binder.operand(*weight);
        args.weights = binder.type(*weight).shape.elements() / args.vectors.width;
    }
    if (bias) args.bias = binder.operand(*bias);
    return args;
}

}  // namespace

template <>
void bind(const ops::RmsNorm& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().rms_norm,
                norm(op.x, op.weight, {}, op.epsilon, node, binder));
}

template <>
void bind(const ops::LayerNorm& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().layer_norm,
                norm(op.x, op.weight, op.bias, op.epsilon, node, binder));
}

template <>
void bind(const ops::L2Norm& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().l2_norm, norm(op.x, {}, {}, op.epsilon, node, binder));
}

template <>
void bind(const ops::RowSum& op, const CpuNode& node, Binder& binder) {
    binder.call(node, binder.kernels().row_sum, norm(op.x, {}, {}, 0.0f, node, binder));
}

template <>
void bind(const NormQuantize& op, const CpuNode& node, Binder& binder) {
    const NormArgs args = norm(op.x, op.weight, {}, op.epsilon, node, binder);
    binder.call(node, binder.kernels().norm_quantize, args,
                static_cast<uint64_t>(args.vectors.width) * sizeof(float));
}

}  // namespace plait::cpu
