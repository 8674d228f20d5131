#include <algorithm>

#include "backend/vulkan/ops/turns.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref positions, y, turns, axis;
    Rows rows;
    uint32_t pairs, axes;
    float magnitude;
};

// M-RoPE (Qwen2-VL, arXiv:2409.12191): the sections share the pairs out among the axes, over and
// over where they do not cover all pairs.
std::vector<int32_t> axis_of_pairs(const Rope& rope, int32_t axes) {
    std::vector<int32_t> axis_of(static_cast<size_t>(rope.n_rot / 2));
    int32_t axis = 0, left = rope.sections[0];
    if (rope.sections[0] + rope.sections[1] + rope.sections[2] + rope.sections[3] == 0)
        return axis_of;
    for (int32_t& pair : axis_of) {
        while (left == 0) left = rope.sections[axis = (axis + 1) % 4];
        pair = std::min(axis, axes - 1);
        --left;
    }
    return axis_of;
}

}  // namespace

void bind(const RopeTableOp& op, const Node& node, Binder& binder) {
    Args args{};
    args.positions = binder.ref(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.turns = turns(
        op.rope, node.inputs.size() > 1 ? std::optional(node.inputs[1]) : std::nullopt, binder);
    args.rows = rows_of(node);
    args.pairs = to_u32(op.rope.n_rot / 2);
    args.axes = to_u32(row_elements(binder.type(node.inputs[0])));
    args.axis = binder.constant(axis_of_pairs(op.rope, static_cast<int32_t>(args.axes)));
    args.magnitude = static_cast<float>(op.rope.magnitude);
    binder.step(node, "rope_table", {}, {axis(args.rows, args.pairs, 64)}, args);
}

}  // namespace plait::vulkan
