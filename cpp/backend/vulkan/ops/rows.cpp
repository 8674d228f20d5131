#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct EmbedArgs {
    Ref tokens, y;
    uint64_t table, row_bytes;
    Rows rows;
    uint32_t columns;
};

struct SelectRowsArgs {
    Ref x, indices, y;
    Rows rows;
    uint32_t width;
};

struct StoreRowsArgs {
    Ref storage, x, indices;
    Rows rows;
    uint32_t heads, width, head_elements, head_bytes, row_bytes;
};

struct EditRowsArgs {
    Ref x, rows, picks, y;
    Rows n;
    uint32_t width, by_row;
};

struct CopyRowsArgs {
    Ref storage, from, to;
    Rows moves;
    uint32_t row_bytes;
};

}  // namespace

template <>
void bind(const ops::Embed& op, const Node& node, Binder& binder) {
    const Matrix& table = binder.matrix(op.table);
    const EmbedArgs args{binder.ref(op.tokens), binder.result(node), table.address,
                         table.row_bytes,       rows_of(node),       table.columns};
    binder.dispatch(node, "embed", {static_cast<uint32_t>(table.dtype)},
                    {fixed_axis(table.columns, 16 * 64), axis(args.rows)}, args);
}

template <>
void bind(const ops::SelectRows& op, const Node& node, Binder& binder) {
    const SelectRowsArgs args{binder.ref(op.x), binder.ref(op.rows), binder.result(node),
                              rows_of(node), to_u32(row_elements(node.type))};
    binder.dispatch(node, "select_rows", {}, {elements_axis(node)}, args);
}

// The heads are those of x [n, heads, width]; x [n, width] is one head.
template <>
void bind(const ops::StoreRows& op, const Node& node, Binder& binder) {
    const Node& x = binder.node(op.x);
    StoreRowsArgs args{};
    args.storage = binder.ref(op.storage);
    args.x = binder.ref(op.x);
    args.indices = binder.ref(op.rows);
    args.rows = rows_of(x);
    args.heads = x.type.shape.rank == 3 ? to_u32(x.type.shape[1]) : 1;
    args.width = to_u32(x.type.shape[-1]);
    const ShaderLayout layout = shader_layout(node.type, args.heads);
    PLAIT_CHECK(args.width <= layout.head_elements);
    args.head_elements = layout.head_elements;
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    const int64_t blocks = (layout.head_elements + 31) / 32;
    binder.dispatch(node, "store_rows", {static_cast<uint32_t>(layout.dtype)},
                    {axis(args.rows, args.heads * blocks, 64)}, args);
}

template <>
void bind(const ops::CopyRows& op, const Node& node, Binder& binder) {
    const uint32_t row_bytes = shader_layout(node.type, 1).row_bytes;
    PLAIT_CHECK(row_bytes % 2 == 0);
    const CopyRowsArgs args{binder.ref(op.storage), binder.ref(op.from), binder.ref(op.to),
                            rows_of(binder.node(op.from)), row_bytes};
    binder.dispatch(node, "copy_rows", {}, {fixed_axis(row_bytes / 2, 64)}, args);
}

template <>
void bind(const ops::EditRows& op, const Node& node, Binder& binder) {
    const EditRowsArgs args{binder.operand(op.x),
                            binder.ref(op.rows),
                            binder.ref(op.picks),
                            binder.result(node),
                            rows_of(node),
                            to_u32(row_elements(node.type)),
                            binder.node(op.rows).extent != Extent::fixed};
    binder.dispatch(node, "edit_rows", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
