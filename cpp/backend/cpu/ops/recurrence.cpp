#include "backend/cpu/ops/operands.h"
#include "backend/shared/references.h"

namespace plait::cpu {

template <>
void bind(const ops::ShortConv& op, const CpuNode& node, Binder& binder) {
    ShortConvArgs args{};
    set_references(args, op, node, binder);
    args.channels = node.type.shape[1];
    args.taps = binder.type(op.weight).shape[1];
    args.states = state_args(op.states, binder);
    binder.call(node, binder.kernels().short_conv, args,
                static_cast<uint64_t>(args.taps * kConvChunk) * sizeof(float));
}

template <>
void bind(const ops::TokenShift& op, const CpuNode& node, Binder& binder) {
    TokenShiftArgs args{};
    set_references(args, op, node, binder);
    args.width = node.type.shape[1];
    args.states = state_args(op.states, binder);
    binder.call(node, binder.kernels().token_shift, args);
}

template <>
void bind(const ops::SelectiveScan& op, const CpuNode& node, Binder& binder) {
    SelectiveScanArgs args{};
    set_references(args, op, node, binder);
    const Shape& a = binder.type(op.a).shape;
    args.states = {state_args(op.states, binder), 1, a[1], a[0]};
    binder.call(node, binder.kernels().selective_scan, args,
                static_cast<uint64_t>(a[1] * kTileColumns) * sizeof(float));
}

template <>
void bind(const ops::SsdScan& op, const CpuNode& node, Binder& binder) {
    SsdScanArgs args{};
    set_references(args, op, node, binder);
    const Shape& x = node.type.shape;
    const Shape& b = binder.type(op.b).shape;
    args.groups = b[1];
    args.states = {state_args(op.states, binder), x[1], b[2], x[2]};
    binder.call(node, binder.kernels().ssd_scan, args);
}

template <>
void bind(const ops::Wkv6& op, const CpuNode& node, Binder& binder) {
    Wkv6Args args{};
    set_references(args, op, node, binder);
    const Shape& r = node.type.shape;
    args.states = {state_args(op.states, binder), r[1], r[2], r[2]};
    binder.call(node, binder.kernels().wkv6, args);
}

template <>
void bind(const ops::Wkv7& op, const CpuNode& node, Binder& binder) {
    Wkv7Args args{};
    set_references(args, op, node, binder);
    const Shape& r = node.type.shape;
    args.states = {state_args(op.states, binder), r[1], r[2], r[2]};
    binder.call(node, binder.kernels().wkv7, args);
}

template <>
void bind(const ops::DeltaRule& op, const CpuNode& node, Binder& binder) {
    DeltaRuleArgs args{};
    set_references(args, op, node, binder);
    const Shape& k = binder.type(op.k).shape;
    const Shape& v = node.type.shape;
    args.key_heads = k[1];
    args.tiled = op.tiled;
    args.states = {state_args(op.states, binder), v[1], k[2], v[2]};
    binder.call(node, binder.kernels().delta_rule, args);
}

}  // namespace plait::cpu
