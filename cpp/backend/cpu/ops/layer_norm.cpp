#include "backend/cpu/ops/norm.h"

namespace plait::cpu {

void bind(const LayerNormOp& op, const Node& node, Binder& binder) {
    binder.step(node, binder.kernels().layer_norm, norm(node, binder, op.epsilon));
}

}  // namespace plait::cpu
