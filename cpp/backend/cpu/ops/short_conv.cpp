#include "backend/cpu/kernels/recurrence/recurrence.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const ShortConvOp&, const Node& node, Binder& binder) {
    ShortConvArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.weight = operand(node.inputs[1], binder);
    args.has_bias = node.inputs.size() > 6;
    if (args.has_bias) args.bias = operand(node.inputs[2], binder);
    args.y = binder.ref(id_of(node, binder));
    args.channels = node.type.shape[1];
    args.taps = binder.type(node.inputs[1]).shape[1];
    args.states = state_args(node, binder);
    binder.step(node, binder.kernels().short_conv, args,
                static_cast<uint64_t>(args.taps * kConvChunk) * sizeof(float));
}

}  // namespace plait::cpu
