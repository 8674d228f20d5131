#include "backend/cpu/kernels/rows/cache_rows.h"

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

// The heads are those of x [n, heads, width]; x [n, width] is one head.
void bind(const StoreRowsOp&, const Node& node, Binder& binder) {
    const Node& x = binder.graph().node(node.inputs[1]);
    StoreRowsArgs args{};
    args.storage = binder.ref(node.inputs[0]);
    args.x = binder.ref(node.inputs[1]);
    args.rows = binder.ref(node.inputs[2]);
    args.extent = extent_of(x);
    args.fixed_rows = x.type.shape[0];
    args.heads = x.type.shape.rank == 3 ? x.type.shape[1] : 1;
    args.width = x.type.shape[-1];
    const CacheLayout layout = cache_layout(node.type, args.heads);
    PLAIT_CHECK(args.width <= layout.head_elements);
    args.dtype = layout.dtype;
    args.head_elements = layout.head_elements;
    args.row_bytes = layout.row_bytes;
    binder.step(node, binder.kernels().store_rows, args,
                static_cast<uint64_t>(args.head_elements) * sizeof(float));
}

}  // namespace plait::cpu
