#include "backend/vulkan/ops/elementwise.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref a, b, y;
    Rows rows;
    uint32_t row_elements, width, share;
    float number, second;
};

}  // namespace

void bind_elementwise(Elementwise op, const Node& node, Binder& binder,
                      const ElementwiseNumbers& numbers) {
    Args args{};
    args.a = binder.operand(node.inputs[0]);
    args.y = binder.ref(binder.id_of(node));
    args.rows = rows_of(node);
    args.row_elements = to_u32(row_elements(node.type));
    args.number = numbers.first;
    args.second = numbers.second;
    if (node.inputs.size() > 1) {
        args.b = binder.operand(node.inputs[1]);
        const Shape& a = node.type.shape;
        const Shape& b = binder.type(node.inputs[1]).shape;
        if (b[-1] == 1 && b.elements() * a[-1] == a.elements() && b != a)
            args.share = to_u32(a[-1]);
        else if (b != a)
            args.width = to_u32(b.elements());
    }
    binder.step(node, "elementwise",
                {static_cast<uint32_t>(op), static_cast<uint32_t>(numbers.activation)},
                {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
