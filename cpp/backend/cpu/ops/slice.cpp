#include "backend/cpu/kernels/rows/rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const SliceOp& op, const Node& node, Binder& binder) {
    SliceArgs args{};
    args.x = operand(node.inputs[0], binder);
    args.y = binder.ref(id_of(node, binder));
    args.x_width = binder.type(node.inputs[0]).shape[-1];
    args.begin = op.begin;
    args.vectors = vectors_of(node, node.type.shape);
    binder.step(node, binder.kernels().slice, args);
}

}  // namespace plait::cpu
