#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const GateOp& op, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::gate, node, binder, {.activation = op.how});
}

}  // namespace plait::vulkan
