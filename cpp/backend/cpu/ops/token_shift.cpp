#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const TokenShiftOp&, const Node& node, Binder& binder) {
    TokenShiftArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.width = node.type.shape[1];
    args.states = state_args(node, binder);
    binder.step(node, binder.kernels().token_shift, args);
}

}  // namespace plait::cpu
