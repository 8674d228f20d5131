#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const Wkv7Op&, const Node& node, Binder& binder) {
    Wkv7Args args{};
    args.r = binder.ref(node.inputs[0]);
    args.w = binder.ref(node.inputs[1]);
    args.k = binder.ref(node.inputs[2]);
    args.v = binder.ref(node.inputs[3]);
    args.a = binder.ref(node.inputs[4]);
    args.b = binder.ref(node.inputs[5]);
    args.y = binder.ref(id_of(node, binder));
    const Shape& r = node.type.shape;
    args.states = {state_args(node, binder), r[1], r[2], r[2]};
    binder.step(node, binder.kernels().wkv7, args);
}

}  // namespace plait::cpu
