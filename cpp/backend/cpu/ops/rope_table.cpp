#include "backend/cpu/kernels/rows/rope.h"

#include <algorithm>

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const RopeTableOp& op, const Node& node, Binder& binder) {
    RopeTableArgs args{};
    args.positions = binder.ref(node.inputs[0]);
    args.y = binder.ref(id_of(node, binder));
    args.has_factors = node.inputs.size() > 1;
    if (args.has_factors) args.factors = operand(node.inputs[1], binder);
    args.extent = extent_of(node);
    args.fixed_rows = node.type.shape[0];
    args.axes = row_elements(binder.type(node.inputs[0]));
    std::copy(std::begin(op.rope.sections), std::end(op.rope.sections), args.sections);
    args.magnitude = op.rope.magnitude;
    args.frequencies = frequencies(op.rope);
    binder.step(node, binder.kernels().rope_table, args);
}

}  // namespace plait::cpu
