#include "backend/vulkan/ops/product.h"

#include <algorithm>
#include <bit>

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, y, bias, residual, routes;
    uint64_t weight, row_bytes;
    Rows rows;
    uint32_t rows_each, columns, outputs, x_share, matrices, bias_stride;
    uint32_t has_bias, has_residual, has_routes;
};

// What a workgroup makes at once, and each of its invocations.
struct Tile {
    uint32_t rows, outputs, my_rows, my_outputs, depth;

    uint32_t invocations() const { return rows / my_rows * (outputs / my_outputs); }
    uint32_t shared_bytes() const { return depth * (rows + outputs + 2) * 4; }
};

// From so many rows on tiles are worth it, which unpack the matrix once for all of theirs.
constexpr uint32_t kTileRows = 8;
constexpr uint64_t kVectorOutputs = 4;
constexpr uint32_t kMostVectorRows = 4;
constexpr uint32_t kMostVectorInvocations = 64;

// One for each group of 16 columns, in whole subgroups.
uint32_t vector_invocations(uint32_t columns, const Limits& limits) {
    const uint32_t least = std::min(limits.subgroup, kMostVectorInvocations);
    return std::clamp(std::bit_ceil((columns + 15) / 16), least, kMostVectorInvocations);
}

// Sums in registers cost the least memory traffic, so an invocation has as many as leave a workgroup
// two subgroups.
Tile tile_for(uint32_t rows, const Limits& limits) {
    constexpr uint32_t kOutputs = 64, kMostRows = 64;
    Tile tile{.rows = std::clamp(std::bit_ceil(rows), kTileRows, kMostRows),
              .outputs = kOutputs,
              .my_rows = 8,
              .my_outputs = 8,
              .depth = 32};
    while (tile.invocations() < 2 * limits.subgroup && tile.my_rows > 1)
        (tile.my_outputs < tile.my_rows ? tile.my_rows : tile.my_outputs) /= 2;
    if (tile.shared_bytes() > limits.shared_bytes) tile.depth = 16;
    return tile;
}

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
        const Tile tile = tile_for(args.rows.fixed, binder.limits());
        binder.step(
            node, "product_tiles",
            {type, tile.rows, tile.outputs, tile.my_rows, tile.my_outputs, tile.depth,
             tile.invocations()},
            {fixed_axis(args.outputs, tile.outputs), axis(args.rows, args.rows_each, tile.rows)},
            args);
        return;
    }
    const uint32_t at_once = one_matrix ? std::min(args.rows.fixed, kMostVectorRows) : 1;
    binder.step(
        node, "product_vector", {type, at_once, vector_invocations(args.columns, binder.limits())},
        {fixed_axis(args.outputs, kVectorOutputs), axis(args.rows, args.rows_each, at_once)}, args);
}

}  // namespace plait::vulkan
