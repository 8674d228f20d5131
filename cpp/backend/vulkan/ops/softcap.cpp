#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {

void bind(const SoftcapOp& op, const Node& node, Binder& binder) {
    bind_elementwise(Elementwise::softcap, node, binder, {.first = op.cap});
}

}  // namespace plait::vulkan
