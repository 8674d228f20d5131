#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const ScaleOp& op, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::scale, node, binder, {.first = op.factor, .second = op.offset});
}

}  // namespace plait::vulkan
