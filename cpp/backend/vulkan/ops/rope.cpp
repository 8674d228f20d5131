#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref x, table, y;
    Rows rows;
    uint32_t heads, width, n_rot;
};

}  // namespace

void bind(const RopeOp& op, const Node& node, Binder& binder) {
    const Args args{binder.ref(node.inputs[0]),
                    binder.ref(node.inputs[1]),
                    binder.ref(binder.id_of(node)),
                    rows_of(node),
                    to_u32(node.type.shape[1]),
                    to_u32(node.type.shape[2]),
                    to_u32(op.n_rot)};
    binder.step(node, "rope", {op.interleaved}, {elements_axis(node)}, args);
}

}  // namespace plait::vulkan
