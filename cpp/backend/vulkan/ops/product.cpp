#include "backend/vulkan/ops/product.h"

#include <algorithm>

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, y, bias, residual, routes;
    uint64_t weight, row_bytes;
    Rows rows;
    uint32_t rows_each, columns, outputs, x_share, matrices, bias_stride;
    uint32_t has_bias, has_residual, has_routes;
};

// From so many rows on tiles are worth it, which read the matrix once for 32 rows.
constexpr uint32_t kTileRows = 8;
constexpr uint64_t kTile = 32;
constexpr uint64_t kVectorOutputs = 4;
constexpr uint32_t kMostVectorRows = 4;

}  // namespace

void bind_product(const Product& product, const Node& node, Binder& binder) {
    const Matrix& weight = binder.matrix(node.inputs[1]);
    Args args{};
    args.x = binder.ref(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.weight = weight.address;
    args.row_bytes = weight.row_bytes;
    args.rows = rows_of(node);
    args.rows_each = to_u32(product.rows_each);
    args.columns = weight.columns;
    args.outputs = weight.rows;
    args.x_share = to_u32(product.x_share);
    args.matrices = to_u32(product.matrices);
    args.has_bias = product.bias.has_value();
    if (product.bias) args.bias = binder.operand(*product.bias);
    args.has_residual = product.residual.has_value();
    if (product.residual) args.residual = binder.ref(*product.residual);
    args.has_routes = product.routes.has_value();
    if (product.routes) {
        args.routes = binder.ref(*product.routes);
        args.bias_stride = weight.rows;
    }
    const bool one_matrix = product.matrices == 1 && !product.routes;
    const auto type = static_cast<uint32_t>(weight.dtype);
    if (one_matrix && args.rows.fixed >= kTileRows) {
        binder.step(node, "product_tiles", {type},
                    {fixed_axis(args.outputs, kTile), axis(args.rows, args.rows_each, kTile)},
                    args);
        return;
    }
    const uint32_t at_once = one_matrix ? std::min(args.rows.fixed, kMostVectorRows) : 1;
    binder.step(
        node, "product_vector", {type, at_once},
        {fixed_axis(args.outputs, kVectorOutputs), axis(args.rows, args.rows_each, at_once)}, args);
}

}  // namespace plait::vulkan
