#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const ScaleOp& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = elementwise(node, binder);
    args.number = op.factor;
    args.second = op.offset;
    binder.step(node, binder.kernels().scale, args);
}

}  // namespace plait::cpu
