// Binds the ops of shaders/elementwise.comp, slice.comp and concat.comp.
#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

// Numbered as in shaders/elementwise.comp.
enum class Elementwise : uint32_t {
    add,
    sub,
    mul,
    scale,
    softcap,
    activate,
    gate,
    clamped_swiglu,
    clamp
};

struct ElementwiseArgs {
    Ref a, b, y;
    Rows rows;
    uint32_t row_elements, width, share;
    float number, second;
};

struct SliceArgs {
    Ref x, y;
    Rows rows;
    uint32_t row_elements, x_width, begin, width;
};

struct ConcatArgs {
    Ref a, b, y;
    Rows rows;
    uint32_t row_elements, a_width, width, b_share;
};

ElementwiseArgs unary(NodeId x, const Node& node, Binder& binder) {
    ElementwiseArgs args{};
    args.a = binder.operand(x);
    args.y = binder.result(node);
    args.rows = rows_of(node);
    args.row_elements = to_u32(row_elements(node.type));
    return args;
}

ElementwiseArgs binary(NodeId a, NodeId b, const Node& node, Binder& binder) {
    ElementwiseArgs args = unary(a, node, binder);
    args.b = binder.operand(b);
    const Shape& shape = node.type.shape;
    const Shape& b_shape = binder.type(b).shape;
    if (b_shape == shape) return args;
    const bool by_row = b_shape.rank == 2 && binder.node(b).extent != Extent::fixed;
    if (b_shape[-1] == 1) args.share = to_u32(by_row ? row_elements(node.type) : shape[-1]);
    if (binder.node(b).extent == Extent::fixed) args.width = to_u32(b_shape.elements());
    return args;
}

void dispatch(Elementwise op, const ElementwiseArgs& args, const Node& node, Binder& binder,
              Activation activation = Activation::silu) {
    binder.dispatch(node, "elementwise",
                    {static_cast<uint32_t>(op), static_cast<uint32_t>(activation)},
                    {elements_axis(node)}, args);
}

}  // namespace

template <>
void bind(const ops::Add& op, const Node& node, Binder& binder) {
    dispatch(Elementwise::add, binary(op.a, op.b, node, binder), node, binder);
}

template <>
void bind(const ops::Sub& op, const Node& node, Binder& binder) {
    dispatch(Elementwise::sub, binary(op.a, op.b, node, binder), node, binder);
}

template <>
void bind(const ops::Mul& op, const Node& node, Binder& binder) {
    dispatch(Elementwise::mul, binary(op.a, op.b, node, binder), node, binder);
}

template <>
void bind(const ops::Scale& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.number = op.factor;
    args.second = op.offset;
    dispatch(Elementwise::scale, args, node, binder);
}

template <>
void bind(const ops::Softcap& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.number = op.cap;
    dispatch(Elementwise::softcap, args, node, binder);
}

template <>
void bind(const ops::Clamp& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = unary(op.x, node, binder);
    args.number = op.limit;
    dispatch(Elementwise::clamp, args, node, binder);
}

template <>
void bind(const ops::Activate& op, const Node& node, Binder& binder) {
    dispatch(Elementwise::activate, unary(op.x, node, binder), node, binder, op.activation);
}

template <>
void bind(const ops::Gate& op, const Node& node, Binder& binder) {
    dispatch(Elementwise::gate, binary(op.g, op.up, node, binder), node, binder, op.activation);
}

template <>
void bind(const ops::ClampedSwiglu& op, const Node& node, Binder& binder) {
    ElementwiseArgs args = binary(op.g, op.up, node, binder);
    args.number = op.alpha;
    args.second = op.limit;
    dispatch(Elementwise::clamped_swiglu, args, node, binder);
}

template <>
void bind(const ops::Slice& op, const Node& node, Binder& binder) {
    const SliceArgs args{binder.operand(op.x),
                         binder.result(node),
                         rows_of(node),
                         to_u32(row_elements(node.type)),
                         to_u32(binder.type(op.x).shape[-1]),
                         to_u32(op.begin),
                         to_u32(node.type.shape[-1])};
    binder.dispatch(node, "slice", {}, {elements_axis(node)}, args);
}

template <>
void bind(const ops::Concat& op, const Node& node, Binder& binder) {
    const Shape& a = binder.type(op.a).shape;
    const Shape& b = binder.type(op.b).shape;
    const int64_t vectors_of_a = a.elements() / a[-1], vectors_of_b = b.elements() / b[-1];
    const ConcatArgs args{binder.operand(op.a),
                          binder.operand(op.b),
                          binder.result(node),
                          rows_of(node),
                          to_u32(row_elements(node.type)),
                          to_u32(a[-1]),
                          to_u32(node.type.shape[-1]),
                          to_u32(vectors_of_a / vectors_of_b)};
    binder.dispatch(node, "concat", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
