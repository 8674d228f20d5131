#include "backend/vulkan/ops/product.h"

namespace plait::vulkan {

// Every head's row meets the matrix of its head.
void bind(const HeadLinearOp&, const Node& node, Binder& binder) {
    const int64_t heads = node.type.shape[1];
    bind_product({.rows_each = heads, .matrices = heads}, node, binder);
}

}  // namespace plait::vulkan
