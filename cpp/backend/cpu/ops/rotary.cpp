#include <algorithm>

#include "backend/cpu/ops/operands.h"

namespace plait::cpu {

template <>
void bind(const ops::RopeTable& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<RopeTableArgs>(node, binder);
    args.positions = binder.ref(op.positions);
    args.has_factors = static_cast<bool>(op.factors);
    if (op.factors) args.factors = binder.operand(*op.factors);
    args.axes = row_elements(binder.type(op.positions));
    std::copy(std::begin(op.rope.sections), std::end(op.rope.sections), args.sections);
    args.in_turn = op.rope.in_turn;
    args.magnitude = op.rope.magnitude;
    args.frequencies = rope_frequencies(op.rope);
    binder.call(node, binder.kernels().rope_table, args);
}

template <>
void bind(const ops::Temperature& op, const CpuNode& node, Binder& binder) {
    auto args = args_for<TemperatureArgs>(node, binder);
    args.positions = binder.ref(op.positions);
    args.offset = op.how.offset;
    args.length = op.how.length;
    args.scale = op.how.scale;
    binder.call(node, binder.kernels().temperature, args);
}

namespace {

// hadamard: the block size of a transform after the rotation; 0: none.
void call_rope(const ops::Rope& op, int hadamard, const CpuNode& node, Binder& binder) {
    auto args = args_for<RopeArgs>(node, binder);
    args.x = binder.ref(op.x);
    args.table = binder.ref(op.table);
    args.interleaved = op.interleaved;
    args.heads = node.type.shape[1];
    args.width = node.type.shape[2];
    args.n_rot = op.n_rot;
    args.hadamard = hadamard;
    binder.call(node, binder.kernels().rope, args, static_cast<uint64_t>(op.n_rot) * sizeof(float));
}

}  // namespace

template <>
void bind(const ops::Rope& op, const CpuNode& node, Binder& binder) {
    call_rope(op, 0, node, binder);
}

template <>
void bind(const RopeHadamard& op, const CpuNode& node, Binder& binder) {
    call_rope(op.rope, op.block, node, binder);
}

template <>
void bind(const ops::Hadamard& op, const CpuNode& node, Binder& binder) {
    HadamardArgs args{};
    args.x = binder.ref(op.x);
    args.y = binder.result(node);
    args.extent = node.extent;
    args.fixed_rows = node.type.shape[0];
    args.width = row_elements(node.type);
    args.block = op.block;
    binder.call(node, binder.kernels().hadamard, args);
}

template <>
void bind(const ops::RotateRows& op, const CpuNode& node, Binder& binder) {
    const CpuNode& rows = binder.node(op.rows);
    const auto& [rope, n_heads, head_dim, begin, hadamard] = op.heads;
    const CacheLayout layout = cache_layout(node.type, n_heads);
    PLAIT_CHECK(begin + rope.n_rot <= head_dim && head_dim <= layout.head_elements);
    RotateRowsArgs args{};
    args.storage = binder.ref(op.storage);
    args.rows = binder.ref(op.rows);
    args.deltas = binder.ref(op.deltas);
    args.has_factors = static_cast<bool>(op.factors);
    if (op.factors) args.factors = binder.operand(*op.factors);
    args.dtype = layout.dtype;
    args.interleaved = rope.interleaved;
    args.extent = rows.extent;
    args.fixed_rows = rows.type.shape[0];
    args.heads = n_heads;
    args.begin = begin;
    args.head_bytes = layout.head_bytes;
    args.row_bytes = layout.row_bytes;
    args.frequencies = rope_frequencies(rope);
    args.magnitude = rope.magnitude;
    args.head_dim = head_dim;
    args.hadamard = hadamard;
    binder.call(node, binder.kernels().rotate_rows, args, rotate_rows_scratch(args));
}

}  // namespace plait::cpu
