#include "backend/vulkan/ops/norm.h"

namespace plait::vulkan {

void bind(const RowSumOp&, const Node& node, Binder& binder) {
    bind_norm(Norm::row_sum, node, binder, /*epsilon=*/0.0f);
}

}  // namespace plait::vulkan
