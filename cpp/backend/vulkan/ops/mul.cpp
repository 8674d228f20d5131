#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const MulOp&, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::mul, node, binder);
}

}  // namespace plait::vulkan
