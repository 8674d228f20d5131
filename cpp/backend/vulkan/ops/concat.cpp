#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref a, b, y;
    Rows rows;
    uint32_t row_elements, a_width, width, b_share;
};

}  // namespace

void bind(const ConcatOp&, const Node& node, Binder& binder) {
    const Shape& a = binder.type(node.inputs[0]).shape;
    const Shape& b = binder.type(node.inputs[1]).shape;
    const int64_t vectors_of_a = a.elements() / a[-1], vectors_of_b = b.elements() / b[-1];
    const Args args{binder.operand(node.inputs[0]),  binder.operand(node.inputs[1]),
                    binder.ref(binder.id_of(node)),  rows_of(node),
                    to_u32(row_elements(node.type)), to_u32(a[-1]),
                    to_u32(node.type.shape[-1]),     to_u32(vectors_of_a / vectors_of_b)};
    binder.step(node, "concat", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
