#include "backend/vulkan/ops/norm.h"

namespace plait::vulkan {

void bind(const LayerNormOp& op, const Node& node, Binder& binder) {
    bind_norm(Norm::layer_norm, node, binder, op.epsilon);
}

}  // namespace plait::vulkan
