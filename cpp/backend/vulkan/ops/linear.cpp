// Binds the ops of mix.comp, and of shaders/product_vector.comp, product_tiles.comp and
// lib/product_matrices.glsl, which compute y = x W^T (+ bias + residual).
#include <algorithm>
#include <bit>
#include <optional>

#include "backend/vulkan/cooperative_matrix.h"
#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

// The operands of a product, and how its rows map to the matrices of a stack.
struct Product {
    NodeId x, weight;
    OptionalOperand bias, residual, routes;
    int64_t rows_each = 1;  // products per row of the node
    int64_t x_share = 1;    // consecutive products that read the same row of x
    int64_t matrices = 1;   // used in turn if there are no routes
};

struct LinearArgs {
    Ref x, y, bias, residual, routes;
    uint64_t weight, row_bytes;
    Rows rows;
    uint32_t rows_each, columns, outputs, x_share, matrices, bias_stride;
    uint32_t has_bias, has_residual, has_routes;
};

struct MixArgs {
    Ref x, weights, y;
    Rows rows;
    uint32_t inputs, outputs, width;
};

// The results that a workgroup computes at once, and those of each of its invocations.
struct Tile {
    uint32_t rows, outputs, my_rows, my_outputs, depth;

    uint32_t invocations() const { return rows / my_rows * (outputs / my_outputs); }
    uint32_t shared_bytes() const { return depth * (rows + outputs + 2) * 4; }
};

// Min rows for tiles, which unpack each part of the matrix once for all of their rows. Fewer rows are
// faster in groups of kMaxVectorRows, which read the matrix once each.
constexpr uint32_t kMinTileRows = 17;
constexpr uint32_t kTileOutputs = 64;
constexpr uint32_t kMaxTileRows = 64;
constexpr uint64_t kVectorOutputs = 4;
constexpr uint32_t kMaxVectorRows = 4;
constexpr uint32_t kMaxVectorInvocations = 64;

// One invocation per group of 16 columns, in whole subgroups.
uint32_t vector_invocations(uint32_t columns, const Limits& limits) {
    const uint32_t min = std::min(limits.subgroup, kMaxVectorInvocations);
    return std::clamp(std::bit_ceil((columns + 15) / 16), min, kMaxVectorInvocations);
}

// Sums in registers cost the least memory traffic, so an invocation has as many as possible while a
// workgroup keeps two subgroups.
Tile tile_for(uint32_t rows, const Limits& limits) {
    Tile tile{.rows = std::min(std::bit_ceil(rows), kMaxTileRows),
              .outputs = kTileOutputs,
              .my_rows = 8,
              .my_outputs = 8,
              .depth = 32};
    while (tile.invocations() < 2 * limits.subgroup && tile.my_rows > 1)
        (tile.my_outputs < tile.my_rows ? tile.my_rows : tile.my_outputs) /= 2;
    if (tile.shared_bytes() > limits.shared_bytes) tile.depth = 16;
    return tile;
}

// The same for cooperative matrices. `my_rows` and `my_outputs` are those of a subgroup.
struct MatrixTile {
    uint32_t rows, outputs, my_rows, my_outputs, depth;

    uint32_t subgroups() const { return rows / my_rows * (outputs / my_outputs); }
    // Halves with 16 bytes of padding per row, the sums of one matrix per subgroup, and the scales
    // of the rows.
    uint32_t shared_bytes(const CooperativeMatrix& shape) const {
        return (rows + outputs) * (2 * depth + 16) + subgroups() * shape.m * shape.n * 4 +
               (rows + outputs) * 8 + 4;
    }
};

// A subgroup computes one or two matrices, so that a workgroup has many subgroups, which wait for
// memory in turn (docs/decisions/0017). Returns nullopt if the device has too little shared memory
// or too few invocations, or if the weights are f32, which would lose precision as halves.
std::optional<MatrixTile> matrix_tile_for(uint32_t rows, DType dtype, const Limits& limits) {
    constexpr uint32_t kMinSubgroups = 8, kManyRows = 256;
    if (!limits.matrix || dtype == DType::f32) return std::nullopt;
    const CooperativeMatrix& shape = *limits.matrix;
    MatrixTile tile{.rows = std::min(std::bit_ceil(rows), kMaxTileRows),
                    .outputs = rows < kManyRows ? kTileOutputs : 2 * kTileOutputs,
                    .my_rows = shape.m,
                    .my_outputs = 2 * shape.n,
                    .depth = 64};
    if (tile.subgroups() < kMinSubgroups) tile.my_outputs = shape.n;
    const auto fits = [&] {
        return tile.shared_bytes(shape) <= limits.shared_bytes &&
               tile.subgroups() * limits.subgroup <= limits.workgroup;
    };
    if (!fits()) tile.outputs = kTileOutputs;
    if (!fits()) tile.depth = 32;
    return fits() ? std::optional(tile) : std::nullopt;
}

void bind_product(const Product& product, const Node& node, Binder& binder) {
    const Matrix& weight = binder.matrix(product.weight);
    LinearArgs args{};
    args.x = binder.ref(product.x);
    args.y = binder.result(node);
    args.weight = weight.address;
    args.row_bytes = weight.row_bytes;
    args.rows = rows_of(node);
    args.rows_each = to_u32(product.rows_each);
    args.columns = weight.columns;
    args.outputs = weight.rows;
    args.x_share = to_u32(product.x_share);
    args.matrices = to_u32(product.matrices);
    args.has_bias = static_cast<bool>(product.bias);
    if (product.bias) args.bias = binder.operand(*product.bias);
    args.has_residual = static_cast<bool>(product.residual);
    if (product.residual) args.residual = binder.ref(*product.residual);
    args.has_routes = static_cast<bool>(product.routes);
    if (product.routes) {
        args.routes = binder.ref(*product.routes);
        args.bias_stride = weight.rows;
    }
    const bool one_matrix = product.matrices == 1 && !product.routes;
    const auto type = static_cast<uint32_t>(weight.dtype);
    if (one_matrix && args.rows.fixed >= kMinTileRows) {
        const Limits& limits = binder.limits();
        if (const auto tile = matrix_tile_for(args.rows.fixed, weight.dtype, limits)) {
            const CooperativeMatrix& shape = *limits.matrix;
            binder.dispatch(
                node, shader_of(shape.extension),
                {type, tile->rows, tile->outputs, tile->my_rows, tile->my_outputs, tile->depth,
                 tile->subgroups() * limits.subgroup, shape.m, shape.n, shape.k},
                {fixed_axis(args.outputs, tile->outputs),
                 axis(args.rows, args.rows_each, tile->rows)},
                args);
            return;
        }
        const Tile tile = tile_for(args.rows.fixed, limits);
        binder.dispatch(
            node, "product_tiles",
            {type, tile.rows, tile.outputs, tile.my_rows, tile.my_outputs, tile.depth,
             tile.invocations()},
            {fixed_axis(args.outputs, tile.outputs), axis(args.rows, args.rows_each, tile.rows)},
            args);
        return;
    }
    const uint32_t at_once = one_matrix ? std::min(args.rows.fixed, kMaxVectorRows) : 1;
    binder.dispatch(
        node, "product_vector", {type, at_once, vector_invocations(args.columns, binder.limits())},
        {fixed_axis(args.outputs, kVectorOutputs), axis(args.rows, args.rows_each, at_once)}, args);
}

}  // namespace

template <>
void bind(const ops::Linear& op, const Node& node, Binder& binder) {
    bind_product({.x = op.x, .weight = op.weight, .bias = op.bias}, node, binder);
}

template <>
void bind(const ops::LinearAdd& op, const Node& node, Binder& binder) {
    bind_product({.x = op.x,
                  .weight = op.weight,
                  .bias = op.bias,
                  .residual = OptionalOperand(op.residual.id)},
                 node, binder);
}

// The row of each head is multiplied by the matrix of that head.
template <>
void bind(const ops::HeadLinear& op, const Node& node, Binder& binder) {
    const int64_t heads = node.type.shape[1];
    bind_product({.x = op.x, .weight = op.weight, .rows_each = heads, .matrices = heads}, node,
                 binder);
}

template <>
void bind(const ops::ExpertLinear& op, const Node& node, Binder& binder) {
    const int64_t used = node.type.shape[1];
    const bool x_by_rank = binder.type(op.x).shape.rank == 3;
    bind_product({.x = op.x,
                  .weight = op.weight,
                  .bias = op.bias,
                  .routes = OptionalOperand(op.routes.id),
                  .rows_each = used,
                  .x_share = x_by_rank ? 1 : used},
                 node, binder);
}

template <>
void bind(const ops::Mix& op, const Node& node, Binder& binder) {
    const Shape& weights = binder.type(op.weights).shape;
    const MixArgs args{
        binder.ref(op.x),   binder.ref(op.weights), binder.result(node),       rows_of(node),
        to_u32(weights[2]), to_u32(weights[1]),     to_u32(node.type.shape[2])};
    binder.dispatch(node, "mix", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
