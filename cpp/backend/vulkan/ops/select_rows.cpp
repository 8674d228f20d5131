#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, indices, y;
    Rows rows;
    uint32_t width;
};

}  // namespace

void bind(const SelectRowsOp&, const Node& node, Binder& binder) {
    const Args args{binder.ref(node.inputs[0]), binder.ref(node.inputs[1]),
                    binder.ref(binder.id_of(node)), rows_of(node), to_u32(row_elements(node.type))};
    binder.step(node, "select_rows", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
