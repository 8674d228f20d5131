#include "backend/cpu/kernels/rows/cache_rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const RotateRowsOp& op, const Node& node, Binder& binder) {
    const Node& rows = binder.graph().node(node.inputs[1]);
    const CacheLayout layout = cache_layout(node.type, op.n_heads);
    PLAIT_CHECK(op.begin + op.rope.n_rot <= op.head_dim && op.head_dim <= layout.head_elements);
    RotateRowsArgs args{};
    args.storage = binder.ref(node.inputs[0]);
    args.rows = binder.ref(node.inputs[1]);
    args.deltas = binder.ref(node.inputs[2]);
    args.has_factors = node.inputs.size() > 3;
    if (args.has_factors) args.factors = operand(node.inputs[3], binder);
    args.dtype = layout.dtype;
    args.interleaved = op.rope.interleaved;
    args.extent = extent_of(rows);
    args.fixed_rows = rows.type.shape[0];
    args.heads = op.n_heads;
    args.begin = op.begin;
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    args.frequencies = frequencies(op.rope);
    args.magnitude = op.rope.magnitude;
    binder.step(node, binder.kernels().rotate_rows, args, rotate_rows_scratch(args));
}

}  // namespace plait::cpu
