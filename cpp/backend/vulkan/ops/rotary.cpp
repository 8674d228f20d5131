#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct RopeTableArgs {
    Ref positions, y, turns, axis;
    Rows rows;
    uint32_t pairs, axes;
    float magnitude;
};

struct TemperatureArgs {
    Ref positions, y;
    Rows rows;
    uint32_t offset, length;
    float scale;
};

struct RopeArgs {
    Ref x, table, y;
    Rows rows;
    uint32_t heads, width, n_rot;
};

struct HadamardArgs {
    Ref x, y;
    Rows rows;
    uint32_t width, block;
};

struct RotateRowsArgs {
    Ref storage, indices, deltas, turns;
    Rows moves;
    uint32_t heads, head_bytes, row_bytes, offset, before, n_rot, touched;
    float magnitude;
    uint32_t head_dim;
};

uint64_t fraction_of_turn(double radians) {
    const double turns = radians / (2 * std::numbers::pi);
    return static_cast<uint64_t>(std::ldexp(turns - std::floor(turns), 63)) << 1;
}

// Returns the rotation of each pair of a head per position, for shaders/lib/turns.glsl: [n_rot / 2]
// u64, in units of 2^-64 turns.
Ref turns(const Rope& rope, OptionalOperand factors, Binder& binder) {
    const std::vector<float> by = factors ? binder.values(*factors) : std::vector<float>{};
    const RopeFrequencies frequencies = rope_frequencies(rope);
    std::vector<uint64_t> result;
    for (int pair = 0; pair < rope.n_rot / 2; ++pair) {
        const double factor = factors ? by[static_cast<size_t>(pair)] : 1.0;
        result.push_back(fraction_of_turn(frequency(frequencies, pair, factor)));
    }
    return binder.constant(result);
}

// Returns the axis of each pair.
std::vector<int32_t> axis_of_pairs(const Rope& rope, int64_t axes) {
    std::vector<int32_t> result;
    for (int pair = 0; pair < rope.n_rot / 2; ++pair)
        result.push_back(static_cast<int32_t>(
            std::min(axis_of_pair(rope.sections, rope.in_turn, pair), axes - 1)));
    return result;
}

}  // namespace

template <>
void bind(const ops::RopeTable& op, const Node& node, Binder& binder) {
    RopeTableArgs args{};
    args.positions = binder.ref(op.positions);
    args.y = binder.result(node);
    args.turns = turns(op.rope, op.factors, binder);
    args.rows = rows_of(node);
    args.pairs = to_u32(op.rope.n_rot / 2);
    args.axes = to_u32(row_elements(binder.type(op.positions)));
    args.axis = binder.constant(axis_of_pairs(op.rope, args.axes));
    args.magnitude = static_cast<float>(op.rope.magnitude);
    binder.dispatch(node, "rope_table", {}, {axis(args.rows, args.pairs, 64)}, args);
}

template <>
void bind(const ops::Temperature& op, const Node& node, Binder& binder) {
    const TemperatureArgs args{binder.ref(op.positions), binder.result(node),   rows_of(node),
                               to_u32(op.how.offset),    to_u32(op.how.length), op.how.scale};
    binder.dispatch(node, "temperature", {}, {axis(args.rows, 1, 64)}, args);
}

template <>
void bind(const ops::Rope& op, const Node& node, Binder& binder) {
    const RopeArgs args{binder.ref(op.x), binder.ref(op.table),       binder.result(node),
                        rows_of(node),    to_u32(node.type.shape[1]), to_u32(node.type.shape[2]),
                        to_u32(op.n_rot)};
    binder.dispatch(node, "rope", {op.interleaved}, {elements_axis(node)}, args);
}

template <>
void bind(const ops::Hadamard& op, const Node& node, Binder& binder) {
    const HadamardArgs args{binder.ref(op.x), binder.result(node), rows_of(node),
                            to_u32(row_elements(node.type)), to_u32(op.block)};
    binder.dispatch(node, "hadamard", {}, {elements_axis(node)}, args);
}

template <>
void bind(const ops::RotateRows& op, const Node& node, Binder& binder) {
    const auto& [rope, n_heads, head_dim, begin, hadamard] = op.heads;
    const ShaderLayout layout = shader_layout(node.type, n_heads);
    PLAIT_CHECK(begin + rope.n_rot <= head_dim);
    const uint32_t block = info(layout.dtype).block_elements;
    RotateRowsArgs args{};
    args.storage = binder.ref(op.storage);
    args.indices = binder.ref(op.rows);
    args.deltas = binder.ref(op.deltas);
    args.turns = turns(rope, op.factors, binder);
    args.moves = rows_of(binder.node(op.rows));
    args.heads = to_u32(n_heads);
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    args.n_rot = to_u32(rope.n_rot);
    // A Hadamard transform concerns the whole head, a rotation only some blocks of the storage.
    const uint32_t first = hadamard ? 0 : to_u32(begin) / block;
    const uint32_t end = hadamard ? to_u32(head_dim) : to_u32(begin) + args.n_rot;
    args.before = to_u32(begin) - first * block;
    args.offset = first * info(layout.dtype).block_bytes;
    args.touched = (end - first * block + block - 1) / block * block;
    args.magnitude = static_cast<float>(rope.magnitude);
    args.head_dim = to_u32(head_dim);
    binder.dispatch(node, "rotate_rows",
                    {static_cast<uint32_t>(layout.dtype), rope.interleaved,
                     (args.touched + 31) / 32, to_u32(hadamard)},
                    {fixed_axis(n_heads)}, args);
}

}  // namespace plait::vulkan
