#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

template <>
void bind(const ops::Embed& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<EmbedArgs>(node, binder);
    args.table = binder.matrix(op.table);
    args.tokens = binder.ref(op.tokens);
    binder.call(node, binder.kernels().embed, args);
}

template <>
void bind(const ops::SelectRows& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<SelectRowsArgs>(node, binder);
    args.x = binder.ref(op.x);
    args.rows = binder.ref(op.rows);
    args.row_bytes = row_elements(node.type) * static_cast<int64_t>(sizeof(float));
    binder.call(node, binder.kernels().select_rows, args);
}

namespace {

// The heads are those of x [n, heads, width]; x [n, width] is one head. hadamard: the block size of
// the transform that the cache stores; 0: none.
void call_store_rows(const ops::StoreRows& op, int hadamard, const CpuNode& node, Binder& binder) {
    const CpuNode& x = binder.node(op.x);
    StoreRowsArgs args{};
    args.storage = binder.ref(op.storage);
    args.x = binder.ref(op.x);
    args.rows = binder.ref(op.rows);
    args.extent = x.extent;
    args.fixed_rows = x.type.shape[0];
    args.heads = x.type.shape.rank == 3 ? x.type.shape[1] : 1;
    args.width = x.type.shape[-1];
    const CacheLayout layout = cache_layout(node.type, args.heads);
    PLAIT_CHECK(args.width <= layout.head_elements);
    args.dtype = layout.dtype;
    args.head_elements = layout.head_elements;
    args.row_bytes = layout.row_bytes;
    args.hadamard = hadamard;
    binder.call(node, binder.kernels().store_rows, args,
                static_cast<uint64_t>(args.head_elements) * sizeof(float));
}

}  // namespace

template <>
void bind(const ops::StoreRows& op, const CpuNode& node, Binder& binder) {
    call_store_rows(op, 0, node, binder);
}

template <>
void bind(const StoreHadamard& op, const CpuNode& node, Binder& binder) {
    call_store_rows({op.storage, op.x, op.rows}, op.block, node, binder);
}

template <>
void bind(const ops::CopyRows& op, const CpuNode& node, Binder& binder) {
    const CpuNode& from = binder.node(op.from);
    CopyRowsArgs args{};
    args.storage = binder.ref(op.storage);
    args.from = binder.ref(op.from);
    args.to = binder.ref(op.to);
    args.extent = from.extent;
    args.fixed_rows = from.type.shape[0];
    args.row_bytes = cache_layout(node.type, 1).row_bytes;
    binder.call(node, binder.kernels().copy_rows, args);
}

template <>
void bind(const ops::EditRows& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<EditRowsArgs>(node, binder);
    args.x = binder.operand(op.x);
    args.rows = binder.ref(op.rows);
    args.picks = binder.ref(op.picks);
    args.rows_by_row = binder.node(op.rows).extent != Extent::fixed;
    args.row_elements = row_elements(node.type);
    binder.call(node, binder.kernels().edit_rows, args);
}

}  // namespace plait::cpu
