#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const SoftcapOp& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = elementwise(node, binder);
    args.number = op.cap;
    binder.step(node, binder.kernels().softcap, args);
}

}  // namespace plait::cpu
