#include "backend/vulkan/ops/norm.h"

namespace plait::vulkan {

void bind(const L2NormOp& op, const Node& node, Binder& binder) {
    bind_norm(Norm::l2_norm, node, binder, op.epsilon);
}

}  // namespace plait::vulkan
