#include "backend/cpu/kernels/rows/rope.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

void bind(const RopeOp& op, const Node& node, Binder& binder) {
    RopeArgs args{};
    args.x = binder.ref(node.inputs[0]);
    args.table = binder.ref(node.inputs[1]);
    args.y = binder.ref(id_of(node, binder));
    args.extent = extent_of(node);
    args.interleaved = op.interleaved;
    args.fixed_rows = node.type.shape[0];
    args.heads = node.type.shape[1];
    args.width = node.type.shape[2];
    args.n_rot = op.n_rot;
    binder.step(node, binder.kernels().rope, args, static_cast<uint64_t>(op.n_rot) * sizeof(float));
}

}  // namespace plait::cpu
