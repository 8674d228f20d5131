// Binds what shaders/product_vector.comp, product_tiles.comp and lib/product_matrices.glsl do:
// y = x W^T (+ bias + residual).
#pragma once

#include <optional>

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

// Inputs of the node beyond x and W, and how its rows meet the matrices of a stack.
struct Product {
    std::optional<NodeId> bias, residual, routes;
    int64_t rows_each = 1;  // products in a row of the node
    int64_t x_share = 1;    // so many neighbouring ones are of one row of x
    int64_t matrices = 1;   // taken in turn, where there are no routes
};

void bind_product(const Product& product, const Node& node, Binder& binder);

}  // namespace plait::vulkan
