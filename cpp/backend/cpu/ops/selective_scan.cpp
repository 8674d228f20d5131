#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const SelectiveScanOp&, const Node& node, Binder& binder) {
    SelectiveScanArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.dt = binder.ref(node.inputs[1]);
    args.a = operand(node.inputs[2], binder);
    args.b = binder.ref(node.inputs[3]);
    args.c = binder.ref(node.inputs[4]);
    args.d = operand(node.inputs[5], binder);
    args.y = binder.ref(id_of(node, binder));
    const Shape& a = binder.type(node.inputs[2]).shape;
    args.states = {state_args(node, binder), 1, a[1], a[0]};
    binder.step(node, binder.kernels().selective_scan, args,
                static_cast<uint64_t>(a[1] * kTileColumns) * sizeof(float));
}

}  // namespace plait::cpu
