#include "backend/vulkan/ops/product.h"

namespace plait::vulkan {

void bind(const ExpertLinearOp&, const Node& node, Binder& binder) {
    const int64_t used = node.type.shape[1];
    const bool x_by_rank = binder.type(node.inputs[0]).shape.rank == 3;
    Product product;
    product.routes = node.inputs[2];
    product.rows_each = used;
    product.x_share = x_by_rank ? 1 : used;
    if (node.inputs.size() > 3) product.bias = node.inputs[3];
    bind_product(product, node, binder);
}

}  // namespace plait::vulkan
