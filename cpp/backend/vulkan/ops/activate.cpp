#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const ActivateOp& op, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::activate, node, binder, {.activation = op.how});
}

}  // namespace plait::vulkan
