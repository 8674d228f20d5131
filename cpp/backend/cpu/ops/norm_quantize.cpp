#include "backend/cpu/ops/norm.h"

namespace plait::cpu {

void bind(const NormQuantizeOp& op, const Node& node, Binder& binder) {
    const NormArgs args = norm(node, binder, op.epsilon);
    binder.step(node, binder.kernels().norm_quantize, args,
                static_cast<uint64_t>(args.vectors.width) * sizeof(float));
}

}  // namespace plait::cpu
