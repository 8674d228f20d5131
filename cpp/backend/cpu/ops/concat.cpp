#include "backend/cpu/kernels/rows/rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const ConcatOp&, const Node& node, Binder& binder) {
    const Shape& a = binder.type(node.inputs[0]).shape;
    const Shape& b = binder.type(node.inputs[1]).shape;
    ConcatArgs args{};
    args.a = operand(node.inputs[0], binder);
    args.b = operand(node.inputs[1], binder);
    args.y = binder.ref(id_of(node, binder));
    args.a_width = a[-1];
    args.vectors = vectors_of(node, node.type.shape);
    args.b_is_shared = b.elements() / b[-1] != a.elements() / a[-1];
    binder.step(node, binder.kernels().concat, args);
}

}  // namespace plait::cpu
