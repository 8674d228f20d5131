#include "backend/vulkan/ops/norm.h"

namespace plait::vulkan {

void bind(const RmsNormOp& op, const Node& node, Binder& binder) {
    bind_norm(Norm::rms_norm, node, binder, op.epsilon);
}

}  // namespace plait::vulkan
