#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const SubOp&, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::sub, node, binder);
}

}  // namespace plait::vulkan
