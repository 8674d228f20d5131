#include "backend/vulkan/ops/product.h"

namespace plait::vulkan {

void bind(const LinearOp&, const Node& node, Binder& binder) {
    Product product;
    if (node.inputs.size() > 2) product.bias = node.inputs[2];
    bind_product(product, node, binder);
}

}  // namespace plait::vulkan
