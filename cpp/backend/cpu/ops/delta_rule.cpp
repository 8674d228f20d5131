#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const DeltaRuleOp&, const Node& node, Binder& binder) {
    DeltaRuleArgs args{};
    args.q = binder.ref(node.inputs[0]);
    args.k = binder.ref(node.inputs[1]);
    args.v = binder.ref(node.inputs[2]);
    args.g = binder.ref(node.inputs[3]);
    args.beta = binder.ref(node.inputs[4]);
    args.y = binder.ref(id_of(node, binder));
    const Shape& k = binder.type(node.inputs[1]).shape;
    const Shape& v = node.type.shape;
    args.key_heads = k[1];
    args.states = {state_args(node, binder), v[1], k[2], v[2]};
    binder.step(node, binder.kernels().delta_rule, args);
}

}  // namespace plait::cpu
