#include "backend/cpu/ops/norm.h"

namespace plait::cpu {

void bind(const RmsNormOp& op, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().rms_norm, norm(node, binder, op.epsilon));
}

}  // namespace plait::cpu
