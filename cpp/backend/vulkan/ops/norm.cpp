// Binds the ops of shaders/norm.comp.
#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

// Numbered as in shaders/norm.comp.
enum class Norm : uint32_t { rms_norm, layer_norm, l2_norm, row_sum };

struct NormOperands {
    NodeId x;
    OptionalOperand weight, bias;
    float epsilon;
};

struct NormArgs {
    Ref x, y, weight, bias;
    Rows rows;
    uint32_t vectors_per_row, width, weights, has_weight, has_bias;
    float epsilon;
};

void bind_norm(Norm norm, const NormOperands& op, const Node& node, Binder& binder) {
    const Shape& shape = binder.type(op.x).shape;
    NormArgs args{};
    args.x = binder.operand(op.x);
    args.y = binder.result(node);
    args.rows = rows_of(node);
    args.width = to_u32(shape[-1]);
    args.vectors_per_row = to_u32(shape.elements() / shape[0] / shape[-1]);
    args.has_weight = static_cast<bool>(op.weight);
    args.has_bias = static_cast<bool>(op.bias);
    if (op.weight) {
        args.weight = binder.operand(*op.weight);
        args.weights = to_u32(binder.type(*op.weight).shape.elements() / shape[-1]);
    }
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.epsilon = op.epsilon;
    binder.dispatch(node, "norm", {static_cast<uint32_t>(norm)},
                    {axis(args.rows, args.vectors_per_row)}, args);
}

}  // namespace

template <>
void bind(const ops::RmsNorm& op, const Node& node, Binder& binder) {
    bind_norm(Norm::rms_norm, {op.x, op.weight, {}, op.epsilon}, node, binder);
}

template <>
void bind(const ops::LayerNorm& op, const Node& node, Binder& binder) {
    bind_norm(Norm::layer_norm, {op.x, op.weight, op.bias, op.epsilon}, node, binder);
}

template <>
void bind(const ops::L2Norm& op, const Node& node, Binder& binder) {
    bind_norm(Norm::l2_norm, {op.x, {}, {}, op.epsilon}, node, binder);
}

template <>
void bind(const ops::RowSum& op, const Node& node, Binder& binder) {
    bind_norm(Norm::row_sum, {op.x, {}, {}, 0.0f}, node, binder);
}

}  // namespace plait::vulkan
