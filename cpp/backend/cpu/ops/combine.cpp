#include "backend/cpu/kernels/products/experts.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const CombineOp&, const Node& node, Binder& binder) {
    const TensorType& x = binder.type(node.inputs[0]);
    CombineArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.routes = binder.ref(node.inputs[1]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.used = x.shape[1];
    args.width = x.shape[2];
    binder.step(node, binder.kernels().combine, args);
}

}  // namespace plait::cpu
