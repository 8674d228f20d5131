#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {
namespace {

struct Args {
    Ref storage, from, to;
    Rows moves;
    uint32_t row_bytes;
};

}  // namespace

void bind(const CopyRowsOp&, const Node& node, Binder& binder) {
    const uint32_t row_bytes = cache_layout(node.type, 1).row_bytes;
    PLAIT_CHECK(row_bytes % 2 == 0);
    const Args args{binder.ref(node.inputs[0]), binder.ref(node.inputs[1]),
                    binder.ref(node.inputs[2]), rows_of(binder.node(node.inputs[1])), row_bytes};
    binder.step(node, "copy_rows", {}, {fixed_axis(row_bytes / 2, 64)}, args);
}

}  // namespace plait::vulkan
