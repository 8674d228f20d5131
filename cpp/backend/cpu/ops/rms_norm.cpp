#include "backend/cpu/kernels/rms_norm.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const RmsNormOp& op, const Node& node, Binder& binder) {
    RmsNormArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.has_weight = node.inputs.size() > 1;
    if (args.has_weight) args.weight = operand(node.inputs[1], binder);
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.width = node.type.shape[-1];
    args.rows_per_item = row_elements(node.type) / args.width;
    args.epsilon = op.epsilon;
    binder.step(node, binder.kernels().rms_norm, args);
}

}  // namespace plait::cpu
