#include "backend/cpu/kernels/products/experts.h"

#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

void bind(const ExpertLinearOp&, const Node& node, Binder& binder) {
    const Shape& shape = node.type.shape;  // [rows, used, out]
    ExpertLinearArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.routes = binder.ref(node.inputs[2]);
    args.y = binder.ref(static_cast<NodeId>(&node - binder.graph().nodes().data()));
    args.has_bias = node.inputs.size() > 3;
    if (args.has_bias) args.bias = binder.vector(node.inputs[3]);
    args.x_by_rank = binder.type(node.inputs[0]).shape.rank == 3;
    args.extent = static_cast<uint8_t>(node.extent);
    args.used = static_cast<int32_t>(shape[1]);
    args.fixed_rows = shape[0];
    args.weight = binder.matrix(node.inputs[1]);
    binder.step(
        node, binder.kernels().expert_linear, args,
        static_cast<uint64_t>(expert_linear_scratch_bytes(args.weight, shape[0] * shape[1])));
}

}  // namespace plait::cpu
