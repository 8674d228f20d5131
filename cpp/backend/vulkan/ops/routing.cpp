#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct RouteArgs {
    Ref logits, bias, expert_scale, y;
    Rows rows;
    uint32_t used, groups_used, group_best, has_bias, has_expert_scale, renormalize;
    float scale;
};

struct CombineArgs {
    Ref x, routes, y;
    Rows rows;
    uint32_t used, width;
};

}  // namespace

template <>
void bind(const ops::Route& op, const Node& node, Binder& binder) {
    const RouteParams& params = op.params;
    RouteArgs args{};
    args.logits = binder.ref(op.logits);
    args.y = binder.result(node);
    args.rows = rows_of(node);
    args.used = to_u32(params.n_used);
    args.groups_used = to_u32(params.n_groups_used);
    args.group_best = to_u32(params.group_best);
    args.has_bias = static_cast<bool>(op.bias);
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.has_expert_scale = static_cast<bool>(op.expert_scale);
    if (op.expert_scale) args.expert_scale = binder.operand(*op.expert_scale);
    args.renormalize = params.renormalize;
    args.scale = params.scale;
    const uint32_t experts = to_u32(binder.type(op.logits).shape[1]);
    binder.dispatch(node, "route",
                    {experts, to_u32(params.n_groups), static_cast<uint32_t>(params.gating)},
                    {axis(args.rows)}, args);
}

template <>
void bind(const ops::Combine& op, const Node& node, Binder& binder) {
    const Shape& y = binder.type(op.y).shape;
    const CombineArgs args{binder.ref(op.y), binder.ref(op.routes), binder.result(node),
                           rows_of(node),    to_u32(y[1]),          to_u32(y[2])};
    binder.dispatch(node, "combine", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
