#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref logits, bias, y;
    Rows rows;
    uint32_t used, groups_used, has_bias, renormalize;
    float scale;
};

}  // namespace

void bind(const RouteOp& op, const Node& node, Binder& binder) {
    Args args{};
    args.logits = binder.ref(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.rows = rows_of(node);
    args.used = to_u32(op.n_used);
    args.groups_used = to_u32(op.n_groups_used);
    args.has_bias = node.inputs.size() > 1;
    if (args.has_bias) args.bias = binder.operand(node.inputs[1]);
    args.renormalize = op.renormalize;
    args.scale = op.scale;
    const uint32_t experts = to_u32(binder.type(node.inputs[0]).shape[1]);
    binder.step(node, "route", {experts, to_u32(op.n_groups), static_cast<uint32_t>(op.gating)},
                {axis(args.rows)}, args);
}

}  // namespace plait::vulkan
