#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const SsdScanOp&, const Node& node, Binder& binder) {
    SsdScanArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.dt = binder.ref(node.inputs[1]);
    args.a = operand(node.inputs[2], binder);
    args.b = binder.ref(node.inputs[3]);
    args.c = binder.ref(node.inputs[4]);
    args.d = operand(node.inputs[5], binder);
    args.y = binder.ref(id_of(node, binder));
    const Shape& x = node.type.shape;
    const Shape& b = binder.type(node.inputs[3]).shape;
    args.groups = b[1];
    args.states = {state_args(node, binder), x[1], b[2], x[2]};
    binder.step(node, binder.kernels().ssd_scan, args);
}

}  // namespace plait::cpu
