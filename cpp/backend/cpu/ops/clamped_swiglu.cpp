#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const ClampedSwigluOp& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = elementwise(node, binder);
    args.number = op.alpha;
    args.second = op.limit;
    binder.step(node, binder.kernels().clamped_swiglu, args);
}

}  // namespace plait::cpu
