#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, routes, y;
    Rows rows;
    uint32_t used, width;
};

}  // namespace

void bind(const CombineOp&, const Node& node, Binder& binder) {
    const Shape& x = binder.type(node.inputs[0]).shape;
    const Args args{binder.ref(node.inputs[0]),
                    binder.ref(node.inputs[1]),
                    binder.ref(binder.id_of(node)),
                    rows_of(node),
                    to_u32(x[1]),
                    to_u32(x[2])};
    binder.step(node, "combine", {}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
