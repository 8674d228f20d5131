#include "backend/cpu/ops/norm.h"

namespace plait::cpu {

void bind(const L2NormOp& op, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().l2_norm, norm(node, binder, op.epsilon));
}

}  // namespace plait::cpu
