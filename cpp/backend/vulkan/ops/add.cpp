#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const AddOp&, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::add, node, binder);
}

}  // namespace plait::vulkan
