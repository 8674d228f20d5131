#include "backend/cpu/ops/elementwise.h"

namespace plait::cpu {

void bind(const GateOp& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = elementwise(node, binder);
    args.how = static_cast<uint8_t>(op.how);
    binder.step(node, binder.kernels().gate, args);
}

}  // namespace plait::cpu
