#include "backend/cpu/kernels/route.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const RouteOp& op, const Node& node, Binder& binder) {
    const TensorType& logits = binder.type(node.inputs[0]);
    RouteArgs args{};
    args.logits = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.renormalize = op.renormalize;
    args.experts = static_cast<int32_t>(logits.shape[1]);
    args.used = op.n_used;
    args.scale = op.scale;
    args.fixed_rows = node.type.shape[0];
    binder.step(node, binder.kernels().route, args,
                static_cast<uint64_t>(args.experts) * sizeof(float));
}

}  // namespace plait::cpu
