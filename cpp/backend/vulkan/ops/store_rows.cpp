#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref storage, x, indices;
    Rows rows;
    uint32_t heads, width, head_elements, head_bytes, row_bytes;
};

}  // namespace

// The heads are those of x [n, heads, width]; x [n, width] is one head.
void bind(const StoreRowsOp&, const Node& node, Binder& binder) {
    const Node& x = binder.node(node.inputs[1]);
    Args args{};
    args.storage = binder.ref(node.inputs[0]);
    args.x = binder.ref(node.inputs[1]);
    args.indices = binder.ref(node.inputs[2]);
    args.rows = rows_of(x);
    args.heads = x.type.shape.rank == 3 ? to_u32(x.type.shape[1]) : 1;
    args.width = to_u32(x.type.shape[-1]);
    const CacheLayout layout = cache_layout(node.type, args.heads);
    PLAIT_CHECK(args.width <= layout.head_elements);
    args.head_elements = layout.head_elements;
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    const int64_t blocks = (layout.head_elements + 31) / 32;
    binder.step(node, "store_rows", {static_cast<uint32_t>(layout.dtype)},
                {axis(args.rows, args.heads * blocks, 64)}, args);
}

}  // namespace plait::vulkan
