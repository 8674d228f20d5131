#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

template <>
void bind(const ops::Route& op, const CpuNode& node, Binder& binder) {
    const RouteParams& params = op.params;
    auto args = args_for<RouteArgs>(node, binder);
    args.logits = binder.ref(op.logits);
    args.gating = params.gating;
    args.renormalize = params.renormalize;
    args.has_bias = static_cast<bool>(op.bias);
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.has_expert_scale = static_cast<bool>(op.expert_scale);
    if (op.expert_scale) args.expert_scale = binder.operand(*op.expert_scale);
    args.experts = static_cast<int32_t>(binder.type(op.logits).shape[1]);
    args.used = params.n_used;
    args.groups = params.n_groups;
    args.groups_used = params.n_groups_used;
    args.group_best = params.group_best;
    args.scale = params.scale;
    binder.call(node, binder.kernels().route, args,
                static_cast<uint64_t>(route_scratch_bytes(args)));
}

template <>
void bind(const ops::ExpertLinear& op, const CpuNode& node, Binder& binder) {
    const Shape& shape = node.type.shape;  // [rows, used, out]
    ExpertLinearArgs args{};
    args.x = binder.ref(op.x);
    args.routes = binder.ref(op.routes);
    args.y = binder.result(node);
    args.has_bias = static_cast<bool>(op.bias);
    if (op.bias) args.bias = binder.operand(*op.bias);
    args.x_by_rank = binder.type(op.x).shape.rank == 3;
    args.extent = node.extent;
    args.used = static_cast<int32_t>(shape[1]);
    args.fixed_rows = shape[0];
    args.weight = binder.matrix(op.weight);
    args.threads = binder.n_threads();
    const auto scratch =
        static_cast<uint64_t>(expert_linear_scratch_bytes(args.weight, shape[0] * shape[1]));
    binder.call(node, binder.kernels().expert_linear, args, scratch).redo =
        kErased<expert_linear_redo>;
}

template <>
void bind(const ops::Combine& op, const CpuNode& node, Binder& binder) {
    const Shape& y = binder.type(op.y).shape;
    auto args = args_for<CombineArgs>(node, binder);
    args.x = binder.ref(op.y);
    args.routes = binder.ref(op.routes);
    args.used = y[1];
    args.width = y[2];
    binder.call(node, binder.kernels().combine, args);
}

}  // namespace plait::cpu
