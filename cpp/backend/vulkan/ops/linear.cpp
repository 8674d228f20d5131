#include "backend/vulkan/ops/product.h"

namespace plait::vulkan {

void bind(const LinearOp&, const Node& node, Binder& binder) {
    Product product;
    if (node.inputs.size() > 2) product.bias = node.inputs[2];
    bind_product(product, node, binder);
}

void bind(const LinearAddOp&, const Node& node, Binder& binder) {
    Product product;
    product.residual = node.inputs[2];
    if (node.inputs.size() > 3) product.bias = node.inputs[3];
    bind_product(product, node, binder);
}

}  // namespace plait::vulkan
