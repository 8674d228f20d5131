#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, y;
    Rows rows;
    uint32_t row_elements, x_width, begin, width;
};

}  // namespace

void bind(const SliceOp& op, const Node& node, Binder& binder) {
    const Args args{binder.operand(node.inputs[0]),
                    binder.ref(binder.id_of(node)),
                    rows_of(node),
                    to_u32(row_elements(node.type)),
                    to_u32(binder.type(node.inputs[0]).shape[-1]),
                    to_u32(op.begin),
                    to_u32(node.type.shape[-1])};
    binder.step(node, "slice", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
