#include "backend/cpu/kernels/linear.h"

#include "backend/cpu/ops/bind.h"

namespace plait::cpu {

void bind(const LinearOp&, const Node& node, Binder& binder) {
    LinearArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(static_cast<NodeId>(&node - binder.graph().nodes().data()));
    args.has_bias = node.inputs.size() > 2;
    if (args.has_bias) args.bias = binder.vector(node.inputs[2]);
    args.extent = static_cast<uint8_t>(node.extent);
    args.fixed_rows = node.type.shape[0];
    args.weight = binder.matrix(node.inputs[1]);
    binder.step(node, binder.kernels().linear, args,
                static_cast<uint64_t>(product_scratch_bytes(args.weight.columns)));
}

}  // namespace plait::cpu
