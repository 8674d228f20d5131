#include "backend/cpu/kernels/products/route.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

static_assert(static_cast<int>(Gating::softmax) == kGateSoftmax);
static_assert(static_cast<int>(Gating::sigmoid) == kGateSigmoid);
static_assert(static_cast<int>(Gating::softmax_chosen) == kGateChosen);

void bind(const RouteOp& op, const Node& node, Binder& binder) {
    const TensorType& logits = binder.type(node.inputs[0]);
    RouteArgs args{};
    args.logits = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.gating = static_cast<uint8_t>(op.gating);
    args.renormalize = op.renormalize;
    args.has_bias = node.inputs.size() > 1;
    if (args.has_bias) args.bias = operand(node.inputs[1], binder);
    args.experts = static_cast<int32_t>(logits.shape[1]);
    args.used = op.n_used;
    args.groups = op.n_groups;
    args.groups_used = op.n_groups_used;
    args.scale = op.scale;
    args.fixed_rows = node.type.shape[0];
    binder.step(node, binder.kernels().route, args,
                static_cast<uint64_t>(route_scratch_bytes(args)));
}

}  // namespace plait::cpu
