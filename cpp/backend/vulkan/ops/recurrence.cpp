#include "backend/shared/references.h"
#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

// The places where a recurrent op reads and writes its states. Must match shaders/lib/states.glsl.
struct StateArgs {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    uint32_t elements = 0;      // per row
    uint32_t padding = 0;
};

struct ShortConvArgs {
    StateArgs states;
    Ref x, y, weight, bias;
    uint32_t channels, has_bias;
};

struct TokenShiftArgs {
    StateArgs states;
    Ref x, y;
    uint32_t width;
};

struct SelectiveScanArgs {
    StateArgs states;
    Ref x, dt, y, a, d, b, c;
    uint32_t heads, columns;
};

struct SsdScanArgs {
    StateArgs states;
    Ref x, y, dt, a, d, b, c;
    uint32_t heads, columns, groups;
};

struct Wkv6Args {
    StateArgs states;
    Ref r, k, v, w, y, u;
    uint32_t heads, columns;
};

struct Wkv7Args {
    StateArgs states;
    Ref r, w, k, v, a, b, y;
    uint32_t heads, columns;
};

struct DeltaRuleArgs {
    StateArgs states;
    Ref q, k, v, y, g, beta;
    uint32_t heads, columns, key_heads, tiled;
};

StateArgs state_args(const ops::States& states, const Binder& binder) {
    const TensorType& storage = binder.type(states.storage);
    PLAIT_CHECK(storage.dtype == DType::f32 && storage.shape.rank == 2);
    return {binder.ref(states.storage), binder.ref(states.read_rows), binder.ref(states.write_rows),
            binder.ref(states.token_begin), to_u32(storage.shape[1])};
}

// One workgroup per sequence of the step.
Axis sequences_axis() { return {Rows{kSequences, 0}, 1, 1}; }

// Dispatches a shader that uses lib/scan.glsl. Each head has a state [rows, columns].
template <typename Args>
void dispatch_scan(const Node& node, std::string_view shader, uint32_t rows, const Args& args,
                   Binder& binder) {
    const uint32_t tiles = args.heads * ((args.columns + 31) / 32);
    binder.dispatch(node, shader, {rows}, {fixed_axis(tiles), sequences_axis()}, args);
}

}  // namespace

template <>
void bind(const ops::ShortConv& op, const Node& node, Binder& binder) {
    ShortConvArgs args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.channels = to_u32(node.type.shape[1]);
    const uint32_t taps = to_u32(binder.type(op.weight).shape[1]);
    binder.dispatch(node, "short_conv", {taps}, {fixed_axis(args.channels, 64), sequences_axis()},
                    args);
}

template <>
void bind(const ops::TokenShift& op, const Node& node, Binder& binder) {
    TokenShiftArgs args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.width = to_u32(node.type.shape[1]);
    binder.dispatch(node, "token_shift", {}, {fixed_axis(args.width, 64), sequences_axis()}, args);
}

template <>
void bind(const ops::SelectiveScan& op, const Node& node, Binder& binder) {
    const Shape& a = binder.type(op.a).shape;  // [channels, k]
    SelectiveScanArgs args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.heads = 1;
    args.columns = to_u32(a[0]);
    dispatch_scan(node, "selective_scan", to_u32(a[1]), args, binder);
}

template <>
void bind(const ops::SsdScan& op, const Node& node, Binder& binder) {
    const Shape& x = node.type.shape;          // [n, heads, p]
    const Shape& b = binder.type(op.b).shape;  // [n, groups, k]
    SsdScanArgs args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.heads = to_u32(x[1]);
    args.columns = to_u32(x[2]);
    args.groups = to_u32(b[1]);
    dispatch_scan(node, "ssd_scan", to_u32(b[2]), args, binder);
}

template <>
void bind(const ops::Wkv6& op, const Node& node, Binder& binder) {
    const Shape& shape = node.type.shape;  // [n, heads, dim]
    Wkv6Args args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.heads = to_u32(shape[1]);
    args.columns = to_u32(shape[2]);
    dispatch_scan(node, "wkv6", args.columns, args, binder);
}

template <>
void bind(const ops::Wkv7& op, const Node& node, Binder& binder) {
    const Shape& shape = node.type.shape;  // [n, heads, dim]
    Wkv7Args args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.heads = to_u32(shape[1]);
    args.columns = to_u32(shape[2]);
    dispatch_scan(node, "wkv7", args.columns, args, binder);
}

template <>
void bind(const ops::DeltaRule& op, const Node& node, Binder& binder) {
    const Shape& k = binder.type(op.k).shape;  // [n, key_heads, key_dim]
    const Shape& v = node.type.shape;          // [n, heads, value_dim]
    DeltaRuleArgs args{};
    set_references(args, op, node, binder);
    args.states = state_args(op.states, binder);
    args.heads = to_u32(v[1]);
    args.columns = to_u32(v[2]);
    args.key_heads = to_u32(k[1]);
    args.tiled = op.tiled;
    dispatch_scan(node, "delta_rule", to_u32(k[2]), args, binder);
}

}  // namespace plait::vulkan
