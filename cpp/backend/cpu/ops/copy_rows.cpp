#include "backend/cpu/kernels/rows/rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const CopyRowsOp&, const Node& node, Binder& binder) {
    const Node& from = binder.graph().node(node.inputs[1]);
    CopyRowsArgs args{};
    args.storage = binder.ref(node.inputs[0]);
    args.from = binder.ref(node.inputs[1]);
    args.to = binder.ref(node.inputs[2]);
    args.extent = extent_of(from);
    args.fixed_rows = from.type.shape[0];
    args.row_bytes = cache_layout(node.type, 1).row_bytes;
    binder.step(node, binder.kernels().copy_rows, args);
}

}  // namespace plait::cpu
