#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const Wkv6Op&, const Node& node, Binder& binder) {
    Wkv6Args args{};
    args.r = binder.ref(node.inputs[0]);
    args.k = binder.ref(node.inputs[1]);
    args.v = binder.ref(node.inputs[2]);
    args.w = binder.ref(node.inputs[3]);
    args.u = operand(node.inputs[4], binder);
    args.y = binder.ref(id_of(node, binder));
    const Shape& r = node.type.shape;
    args.states = {state_args(node, binder), r[1], r[2], r[2]};
    binder.step(node, binder.kernels().wkv6, args);
}

}  // namespace plait::cpu
