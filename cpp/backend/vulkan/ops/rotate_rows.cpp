#include "backend/vulkan/ops/turns.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref storage, indices, deltas, turns;
    Rows moves;
    uint32_t heads, head_bytes, row_bytes, offset, before, n_rot, touched;
    float magnitude;
};

}  // namespace

void bind(const RotateRowsOp& op, const Node& node, Binder& binder) {
    const CacheLayout layout = cache_layout(node.type, op.n_heads);
    PLAIT_CHECK(op.begin + op.rope.n_rot <= op.head_dim);
    const uint32_t block = info(layout.dtype).block_elements;
    Args args{};
    args.storage = binder.ref(node.inputs[0]);
    args.indices = binder.ref(node.inputs[1]);
    args.deltas = binder.ref(node.inputs[2]);
    args.turns = turns(
        op.rope, node.inputs.size() > 3 ? std::optional(node.inputs[3]) : std::nullopt, binder);
    args.moves = rows_of(binder.node(node.inputs[1]));
    args.heads = to_u32(op.n_heads);
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    args.n_rot = to_u32(op.rope.n_rot);
    args.before = to_u32(op.begin) % block;
    args.offset = to_u32(op.begin) / block * info(layout.dtype).block_bytes;
    args.touched = (args.before + args.n_rot + block - 1) / block * block;
    args.magnitude = static_cast<float>(op.rope.magnitude);
    binder.step(
        node, "rotate_rows",
        {static_cast<uint32_t>(layout.dtype), op.rope.interleaved, (args.touched + 31) / 32},
        {fixed_axis(op.n_heads)}, args);
}

}  // namespace plait::vulkan
