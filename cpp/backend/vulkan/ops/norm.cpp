#include "backend/vulkan/ops/norm.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, y, weight, bias;
    Rows rows;
    uint32_t vectors_per_row, width, weights, has_weight, has_bias;
    float epsilon;
};

}  // namespace

void bind_norm(Norm norm, const Node& node, Binder& binder, float epsilon) {
    const Shape& shape = binder.type(node.inputs[0]).shape;
    Args args{};
    args.x = binder.operand(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.rows = rows_of(node);
    args.width = to_u32(shape[-1]);
    args.vectors_per_row = to_u32(shape.elements() / shape[0] / shape[-1]);
    args.has_weight = node.inputs.size() > 1;
    args.has_bias = node.inputs.size() > 2;
    if (args.has_weight) {
        args.weight = binder.operand(node.inputs[1]);
        args.weights = to_u32(binder.type(node.inputs[1]).shape.elements() / shape[-1]);
    }
    if (args.has_bias) args.bias = binder.operand(node.inputs[2]);
    args.epsilon = epsilon;
    binder.step(node, "norm", {static_cast<uint32_t>(norm)},
                {axis(args.rows, args.vectors_per_row)}, args);
}

}  // namespace plait::vulkan
