#include "backend/vulkan/ops/states.h"

namespace plait::vulkan {
namespace {

struct Args {
    States states;
    Ref x, dt, y, a, d, b, c;
    uint32_t heads, columns;
};

}  // namespace

void bind(const SelectiveScanOp&, const Node& node, Binder& binder) {
    const Shape& a = binder.type(node.inputs[2]).shape;  // [channels, k]
    Args args{};
    args.states = states_of(node, binder);
    args.x = binder.ref(node.inputs[0]);
    args.dt = binder.ref(node.inputs[1]);
    args.a = binder.operand(node.inputs[2]);
    args.b = binder.ref(node.inputs[3]);
    args.c = binder.ref(node.inputs[4]);
    args.d = binder.operand(node.inputs[5]);
    args.y = binder.ref(binder.id_of(node));
    args.heads = 1;
    args.columns = to_u32(a[0]);
    scan_step(node, "selective_scan", to_u32(a[1]), args, binder);
}

}  // namespace plait::vulkan
