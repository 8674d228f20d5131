#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref x, y, dt, a, d, b, c;
    uint32_t heads, columns, groups;
};

}  // namespace

void bind(const SsdScanOp&, const Node& node, Binder& binder) {
    const Shape& x = node.type.shape;                    // [n, heads, p]
    const Shape& b = binder.type(node.inputs[3]).shape;  // [n, groups, k]
    Args args{};
    args.states = states_of(node, binder);
    args.x = binder.ref(node.inputs[0]);
    args.dt = binder.ref(node.inputs[1]);
    args.a = binder.operand(node.inputs[2]);
    args.b = binder.ref(node.inputs[3]);
    args.c = binder.ref(node.inputs[4]);
    args.d = binder.operand(node.inputs[5]);
    args.y = binder.ref(binder.id_of(node));
    args.heads = to_u32(x[1]);
    args.columns = to_u32(x[2]);
    args.groups = to_u32(b[1]);
    scan_step(node, "ssd_scan", to_u32(b[2]), args, binder);
}

}  // namespace plait::vulkan
