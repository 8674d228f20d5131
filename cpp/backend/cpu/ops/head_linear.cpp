#include "backend/cpu/kernels/products/linear.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const HeadLinearOp&, const Node& node, Binder& binder) {
    HeadLinearArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.weight = binder.matrix(node.inputs[1]);
    binder.step(node, binder.kernels().head_linear, args,
                static_cast<uint64_t>(product_scratch_bytes(args.weight)));
}

}  // namespace plait::cpu
