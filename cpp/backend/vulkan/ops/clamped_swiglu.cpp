#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const ClampedSwigluOp& op, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::clamped_swiglu, node, binder,
                     {.first = op.alpha, .second = op.limit});
}

}  // namespace plait::vulkan
